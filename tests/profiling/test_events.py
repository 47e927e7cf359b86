import numpy as np
import pytest

from tf_libra.profiling.events import Events


def events(starts: list[int], ends: list[int]) -> Events:
    return Events(
        ("a", "b"), ("MatMul", "Add"), np.arange(len(starts)) % 2, *map(np.array, (starts, ends))
    )


def test_window_holds_events_that_start_and_end_in_it() -> None:
    found = events([0, 5, 8, 9], [5, 8, 12, 10]).within((5, 10))
    assert len(found) == 2
    assert found.start_ns.tolist() == [5, 9]
    assert found.node.tolist() == [1, 1]
    assert found.node_names == ("a", "b")


def test_columns_of_different_lengths_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"1, 1, 2$"):
        events([0], [1, 2])
    with pytest.raises(ValueError, match=r"op_types .*1 .*node_names 2"):
        Events(("a", "b"), ("MatMul",), *[np.array([0])] * 3)
