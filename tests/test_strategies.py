import dataclasses

import pytest

from tf_libra import strategies


@pytest.mark.parametrize("name", sorted(strategies.BY_NAME))
def test_name_resolves_to_default_arguments(name):
    assert strategies.resolve(name) == strategies.BY_NAME[name]()
    assert strategies.resolve(name).name == name


def test_object_resolves_to_itself():
    strategy = strategies.Libra(threads=(1,), max_groups=3)
    assert strategies.resolve(strategy) is strategy


def test_threads_are_a_sorted_set():
    assert strategies.Libra(threads=[4, 1, 4, 2.0]).threads == (1, 2, 4)


def test_strategies_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        strategies.Libra().max_groups = 3


@pytest.mark.parametrize(
    ("kind", "field", "value", "word"),
    [
        (strategies.Libra, "max_groups", 0, "max_groups must be from 1"),
        (strategies.Libra, "max_groups", 2.5, "max_groups must be an integer"),
        (strategies.Libra, "chunks", 0, "chunks must be from 1"),
        (strategies.Libra, "threads", (), "threads must hold at least one"),
        (strategies.Libra, "threads", (0,), "threads must be from 1"),
        (strategies.Libra, "threads", "12", "threads must be a list"),
        (strategies.Libra, "threads", (True,), "threads must be an integer"),
        (strategies.Libra, "exact", 1, "exact must be true or false"),
        (strategies.LibraM, "chunks", -1, "chunks must be from 1"),
        (strategies.LibraM, "num_threads", 0, "num_threads must be from 1"),
        (strategies.MgWfbp, "num_threads", 0, "num_threads must be from 1"),
        (strategies.AscWfbp, "contention", 0.9, "contention must be at least 1"),
        (strategies.AscWfbp, "contention", float("nan"), "contention must be a finite number"),
        (strategies.HorovodFusion, "cycle_seconds", 0, "cycle_seconds must be greater than 0"),
        (strategies.HorovodFusion, "buffer_bytes", -1, "buffer_bytes must be from 0"),
    ],
)
def test_wrong_argument_is_named(kind, field, value, word):
    with pytest.raises(ValueError, match=word):
        kind(**{field: value})
