import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.profiling.events import Events
from tf_libra.profiling.gradient_timing import (
    IncompleteTraceError,
    StepProduction,
    backward_start,
    measured_profile,
    production_times,
    select_producers,
    step_production,
)

T0 = 1_795_000_000_000_000_000
MS = 1_000_000
WINDOW = (T0, T0 + 1000 * MS)


def events(*rows: tuple[str, float, float]) -> Events:
    """Events of (node name, start, end), milliseconds since T0."""
    nodes = list(dict.fromkeys(name for name, _, _ in rows))
    return Events(
        node_names=tuple(nodes),
        op_types=("Op",) * len(nodes),
        node=np.array([nodes.index(name) for name, _, _ in rows], dtype=np.int32),
        start_ns=T0 + np.array([round(start * MS) for _, start, _ in rows], dtype=np.int64),
        end_ns=T0 + np.array([round(end * MS) for _, _, end in rows], dtype=np.int64),
    )


def ms(produced_ns: np.ndarray) -> list[float]:
    return ((produced_ns - T0) / MS).tolist()


CHOICE = {"a": ("then/ga", "else/ga"), "b": ("then/gb", "else/gb"), "c": ("gc",)}


def test_branch_that_ran_is_the_producer() -> None:
    inputs = {
        "then/ga": ("then/x", "y"),
        "else/ga": ("else/x", "y"),
        "then/gb": ("y",),
        "else/gb": ("else/x",),
    }
    trace = events(("y", 0, 1), ("else/x", 2, 3), ("else/ga", 4, 5))
    # Neither gb has an event: it is cheap.
    found = select_producers(trace, CHOICE, WINDOW, inputs)
    assert found == {"a": "else/ga", "b": "else/gb", "c": "gc"}


def test_producers_of_several_steps_are_rejected() -> None:
    trace = events(("then/ga", 0, 1), ("else/ga", 2, 3))
    with pytest.raises(IncompleteTraceError, match=r"then/ga.*else/ga,"):
        select_producers(trace, CHOICE, WINDOW, {})


def test_production_is_the_end_of_the_producing_op() -> None:
    trace = events(("x", 0, 1), ("gb", 4, 6), ("ga", 2, 3))
    productions = production_times(trace, {"a": "ga", "b": "gb"}, WINDOW)
    assert productions.names == ("a", "b")
    assert ms(productions.produced_ns) == [3, 6]
    assert productions.inferred == {}


def test_tensors_of_one_op_are_produced_together() -> None:
    productions = production_times(events(("g", 2, 3)), {"kernel": "g", "bias": "g"}, WINDOW)
    assert ms(productions.produced_ns) == [3, 3]


def test_events_outside_of_the_window_are_of_other_steps() -> None:
    trace = events(("g", 2, 3), ("g", 12, 13), ("g", 22, 23))
    productions = production_times(trace, {"a": "g"}, (T0 + 10 * MS, T0 + 20 * MS))
    assert ms(productions.produced_ns) == [13]
    with pytest.raises(IncompleteTraceError, match=r"g, .*\ba\b.* 3 times"):
        production_times(trace, {"a": "g"}, WINDOW)


def test_untraced_op_is_done_with_its_nearest_traced_ancestors() -> None:
    trace = events(("relu", 0, 1), ("sum", 2, 5), ("scale", 3, 4), ("gb", 6, 7))
    inputs = {
        "reshape": ("identity", "scale"),
        "identity": ("sum", "shape"),
        "sum": ("relu",),
        "shape": (),
        "gb": ("reshape",),
    }
    productions = production_times(trace, {"a": "reshape", "b": "gb"}, WINDOW, inputs)
    assert ms(productions.produced_ns) == [5, 7]
    assert productions.inferred == {"a": "reshape has no event: when its ancestor sum ended"}


def test_constant_gradient_is_there_from_the_start() -> None:
    productions = production_times(
        events(("gb", 6, 7)), {"a": "zeros", "b": "gb"}, WINDOW, {"zeros": ()}
    )
    assert ms(productions.produced_ns) == [0, 7]
    assert "there from the start" in productions.inferred["a"]


def test_loops_in_the_graph_end_the_search() -> None:
    inputs = {"a1": ("a2",), "a2": ("a1", "x")}
    productions = production_times(events(("x", 1, 2)), {"a": "a1"}, WINDOW, inputs)
    assert ms(productions.produced_ns) == [2]


@pytest.mark.parametrize("producers", [["?", "gb", "gc"], ["gb", "?", "gc"], ["gc", "gb", "?"]])
def test_unknown_node_goes_with_the_later_of_its_neighbours(producers: list[str]) -> None:
    trace = events(("gb", 1, 2), ("gc", 3, 8))
    productions = production_times(trace, dict(zip("xyz", producers, strict=True)), WINDOW)
    at = producers.index("?")
    assert ms(productions.produced_ns)[at] == (8 if at == 1 else 2)
    assert list(productions.inferred) == ["xyz"[at]]
    assert "with its neighbour" in productions.inferred["xyz"[at]]


def test_window_without_producers_is_rejected() -> None:
    with pytest.raises(IncompleteTraceError, match="no producer"):
        production_times(events(("x", 1, 2)), {"a": "ga", "b": "gb"}, WINDOW)
    with pytest.raises(IncompleteTraceError, match="no producer"):
        production_times(events(), {"a": "ga"}, WINDOW, {"ga": ()})
    with pytest.raises(ValueError, match="at least one tensor"):
        production_times(events(("x", 1, 2)), {}, WINDOW)


@pytest.mark.parametrize("prefix", ["", "StatefulPartitionedCall/", "while/body/_1/while/"])
def test_backward_starts_with_the_first_backward_op(prefix: str) -> None:
    trace = events(
        ("conv", 0, 5),
        ("loss", 5, 6),
        (f"{prefix}gradient_tape/loss/mul", 6, 7),
        (f"{prefix}gradient_tape/dense/MatMul", 8, 10),
    )
    assert backward_start(trace, WINDOW, T0 + 10 * MS) == T0 + 6 * MS


def test_backward_start_ignores_stray_ops_on_either_side() -> None:
    trace = events(
        ("gradient_tape/conv/Size", 0.5, 0.51),  # depends on shapes alone: runs early
        ("conv", 1, 50),
        ("gradient_tape/loss/mul", 50, 51),
        ("metric", 51, 51.1),  # a forward op that runs late
        ("gradient_tape/dense/MatMul", 52, 60),
    )
    assert backward_start(trace, WINDOW, T0 + 60 * MS) == T0 + 50 * MS


def test_backward_start_needs_a_backward_op_before_the_first_production() -> None:
    trace = events(("conv", 0, 5), ("gradient_tape/a", 6, 7))
    with pytest.raises(IncompleteTraceError, match="before the first production"):
        backward_start(trace, WINDOW, T0 + 5 * MS)


def test_step_offsets_count_from_the_start_of_backward() -> None:
    trace = events(
        ("conv", 0, 4),
        ("gradient_tape/mul", 5, 6),
        ("gradient_tape/a", 6, 8),
        ("gradient_tape/b", 8, 9),
    )
    step = step_production(
        trace,
        {"c": "zeros", "a": "gradient_tape/a", "b": "gradient_tape/b"},
        WINDOW,
        {"zeros": ()},
    )
    np.testing.assert_allclose(step.offset_seconds, [0, 3e-3, 4e-3])
    assert step.last_ns == T0 + 9 * MS


def step(offsets_ms: dict[str, float], **inferred: str) -> StepProduction:
    produced = T0 + np.array([round(t * MS) for t in offsets_ms.values()], dtype=np.int64)
    return StepProduction(tuple(offsets_ms), produced, inferred, T0)


BYTES = {"a": 4, "b": 8, "c": 16}


def test_forward_computation_lies_between_first_uses_of_weights() -> None:
    """Weight b is used before c, although its gradient is produced earlier."""
    used = {"a": -1, "b": -6, "c": -4}
    steps = [
        step({"a": 1, "b": 2, "c": 3}).with_uses(
            {name: T0 + round(factor * ms * MS) for name, ms in used.items()}
        )
        for factor in (1, 2, 3)
    ]
    profile = measured_profile(steps, BYTES).profile
    np.testing.assert_allclose(profile.forward_seconds, [2e-3, 10e-3, 0])
    late = step({"a": 1, "b": 2, "c": 3}).with_uses({"a": T0 + 9 * MS, "c": T0 - 4 * MS})
    profile = measured_profile([late], BYTES, min_steps=1).profile
    np.testing.assert_allclose(profile.forward_seconds, [0, 0, 4e-3])  # b's use is unknown
    unknown = step({"a": 1, "b": 2, "c": 3}).with_uses({})
    assert not measured_profile([unknown], BYTES, min_steps=1).profile.forward_seconds.any()


def test_profile_holds_differences_of_medians_in_order_of_production() -> None:
    measured = measured_profile(
        [
            step({"a": 5, "b": 1, "c": 9}),
            step({"a": 4, "b": 2, "c": 30}),
            step({"a": 6, "b": 3, "c": 10}),
        ],
        BYTES,
        dtypes=dict.fromkeys("abc", "float32"),
    )
    profile = measured.profile
    assert profile.names == ("b", "a", "c")
    assert profile.num_bytes.tolist() == [8, 4, 16]
    np.testing.assert_allclose(profile.compute_seconds, [2e-3, 3e-3, 5e-3])
    np.testing.assert_allclose(measured.spread_seconds, [1e-3, 1e-3, 10.5e-3])
    assert {tensor.dtype for tensor in profile.tensors} == {"float32"}
    assert (measured.num_steps, measured.dropped, measured.inferred) == (3, (), {})
    assert measured.num_in_order == 3


def test_profile_can_be_left_in_an_order() -> None:
    measured = measured_profile([step({"a": 5, "b": 1, "c": 9})] * 3, BYTES, order="abc")
    assert measured.profile.names == ("a", "b", "c")
    np.testing.assert_allclose(measured.profile.compute_seconds, [5e-3, 0, 4e-3])


def test_profile_counts_steps_in_its_order() -> None:
    steady = step({"a": 1, "b": 2, "c": 2})
    measured = measured_profile([steady, step({"a": 3, "b": 1, "c": 4}), steady], BYTES)
    assert measured.profile.names == ("a", "b", "c")
    assert (measured.num_steps, measured.num_in_order) == (3, 2)


def test_profile_preserves_the_order_in_ties() -> None:
    measured = measured_profile([step({"c": 2, "a": 2, "b": 1})], BYTES, min_steps=1)
    assert measured.profile.names == ("b", "c", "a")
    np.testing.assert_allclose(measured.profile.compute_seconds, [1e-3, 1e-3, 0])


def test_step_that_lacks_an_event_is_dropped() -> None:
    good = step({"a": 1, "b": 2, "c": 3}, b="always inferred")
    bad = step({"a": 1, "b": 2, "c": 9}, b="always inferred", c="no event")
    measured = measured_profile([good, bad, good, good], BYTES)
    assert measured.dropped == ((1, "c: no event"),)
    assert measured.inferred == {"b": "always inferred"}
    assert measured.num_steps == 3
    np.testing.assert_allclose(measured.profile.compute_seconds.sum(), 3e-3)
    with pytest.raises(IncompleteTraceError, match=r"2 of 3 steps.*step 1: c: no event"):
        measured_profile([good, bad, good], BYTES)


def test_profile_rejects_invalid_input() -> None:
    result = step({"a": 1, "b": 2})
    with pytest.raises(IncompleteTraceError, match=r"2 steps.*3"):
        measured_profile([result, result], BYTES)
    with pytest.raises(ValueError, match=r"steps\[1\]"):
        measured_profile([result, step({"b": 2, "a": 1})], BYTES, min_steps=2)
    with pytest.raises(ValueError, match="num_bytes lacks 'b'"):
        measured_profile([result], {"a": 4}, min_steps=1)
    with pytest.raises(ValueError, match=r"min_steps.*1"):
        measured_profile([], BYTES, min_steps=0)


@given(st.lists(st.lists(st.floats(0, 50), min_size=4, max_size=4), min_size=1, max_size=7))
def test_profile_sums_to_the_last_median(rows: list[list[float]]) -> None:
    steps = [step(dict(zip("abcd", row, strict=True))) for row in rows]
    measured = measured_profile(steps, dict.fromkeys("abcd", 4), min_steps=1)
    medians = np.median([s.offset_seconds for s in steps], axis=0)
    seconds = measured.profile.compute_seconds
    assert (seconds >= 0).all()
    np.testing.assert_allclose(
        np.cumsum(seconds), [medians["abcd".index(n)] for n in measured.profile.names], atol=1e-15
    )
    np.testing.assert_allclose(seconds.sum(), medians.max(), atol=1e-15)
