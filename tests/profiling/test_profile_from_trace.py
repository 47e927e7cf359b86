"""Profiles from synthetic traces and from recorded ones."""

from pathlib import Path

import numpy as np
import pytest

from tests.worker_processes import Job
from tf_libra.cost_model import ContentionModel
from tf_libra.profiling.events import Events
from tf_libra.profiling.gradient_timing import IncompleteTraceError
from tf_libra.profiling.profile_from_trace import profile_of_trace
from tf_libra.profiling.xplane import AllReduceCall, LaneEvent, Trace, find_trace, read_trace
from tf_libra.specs.plan import Plan

MS = 1_000_000
MODEL = ContentionModel(
    num_workers=2,
    hop_latency=0,
    compute=(1.0, 0.25),
    overlapped=(1e9, 0, 1),
    exclusive=(1e9, 0, 1),
)


def made_up(
    produced_ms: list[list[float]],
    groups: list[list[str]],
    exchanges_ms: list[tuple[float, float, int]] | None = None,
) -> Trace:
    """Steps of 100 ms; backward starts at 10 ms; tensor "a" is produced by node "gradient_tape/a".

    Args:
        produced_ms: by step, when each tensor is produced, milliseconds since backward's start.
        groups: tensors of each all-reduce, called when the last of them is produced.
        exchanges_ms: milliseconds since the start of the trace, and threads.
    """
    names = [name for group in groups for name in group]
    nodes = ["forward", *(f"gradient_tape/{name}" for name in names)]
    rows, calls = [], []
    for step, offsets in enumerate(produced_ms):
        begin = step * 100
        rows.append((0, begin, begin + 9))
        last = begin + 10.0
        for index, offset in enumerate(offsets, start=1):
            rows.append((index, last, begin + 10 + offset))
            last = begin + 10 + offset
        for group in groups:
            ready = max(begin + 10 + offsets[names.index(name)] for name in group)
            calls.append(
                AllReduceCall(
                    "node", "plan", len(calls) % len(groups), 1, tuple(group),
                    tuple(100 * (1 + names.index(name)) for name in group),
                    tuple(f"gradient_tape/{name}" for name in group), int(ready * MS) + 1,
                )
            )  # fmt: skip
    lanes = [
        LaneEvent(phase, 0, 0, sequence, threads, 0, 0, int(start * MS), int(end * MS))
        for sequence, (start, end, threads) in enumerate(exchanges_ms or [])
        for phase in ("", "wait", "exchange")
    ]
    columns = np.array(rows)
    events = Events(
        tuple(nodes),
        ("Op",) * len(nodes),
        columns[:, 0].astype(np.int32),
        (columns[:, 1] * MS).astype(np.int64),
        (columns[:, 2] * MS).astype(np.int64),
    )
    return Trace(events, tuple(calls), tuple(lanes))


def test_median_over_the_steps() -> None:
    trace = made_up([[2, 4, 7], [3, 5, 8], [1, 6, 9]], [["a", "b"], ["c"]])
    found = profile_of_trace(trace)
    profile = found.measured.profile
    assert profile.names == ("a", "b", "c")
    assert profile.num_bytes.tolist() == [100, 200, 300]
    assert np.cumsum(profile.compute_seconds) == pytest.approx([2e-3, 5e-3, 8e-3])
    assert found.measured.num_steps == 3
    assert found.overlapped == 0
    assert not found.problems


def test_step_that_the_trace_cuts_off_is_left_out() -> None:
    trace = made_up([[2, 4, 7], [3, 5, 8]], [["a", "b"], ["c"]])
    cut = Trace(trace.events, trace.calls[1:], ())
    found = profile_of_trace(cut)
    assert found.measured.num_steps == 1
    assert list(found.problems) == ["2 of 3 tensors are missing"]
    assert np.cumsum(found.measured.profile.compute_seconds) == pytest.approx([3e-3, 5e-3, 8e-3])


def test_plan_that_changes_in_the_trace() -> None:
    first = made_up([[2, 4, 7]], [["a", "b"], ["c"]])
    both = made_up([[2, 4, 7], [2, 4, 7]], [["a"], ["b", "c"]])
    mixed = Trace(both.events, first.calls + both.calls[2:], ())
    found = profile_of_trace(mixed)
    assert found.measured.num_steps == 2
    assert np.cumsum(found.measured.profile.compute_seconds) == pytest.approx([2e-3, 4e-3, 7e-3])


def test_contention_is_taken_out() -> None:
    # From 3 to 7 ms of backward, at half the speed: 2 ms are lost by then.
    trace = made_up([[2, 5, 9]], [["a", "b"], ["c"]], [(13, 17, 2)])
    found = profile_of_trace(trace, MODEL)
    assert np.cumsum(found.measured.profile.compute_seconds) == pytest.approx([2e-3, 4e-3, 7e-3])
    assert found.overlapped == pytest.approx(4 / 9)
    plain = profile_of_trace(trace)
    assert plain.measured.profile.compute_seconds.sum() == pytest.approx(9e-3)
    assert plain.overlapped == pytest.approx(4 / 9)


def test_trace_without_all_reduces() -> None:
    trace = made_up([[1.0]], [["a"]])
    with pytest.raises(IncompleteTraceError, match="LibraAllReduce"):
        profile_of_trace(Trace(trace.events, (), ()))


def test_trace_without_gradients() -> None:
    trace = made_up([[1.0]], [["a"]])
    empty = Events(("forward",), ("Op",), *(getattr(trace.events, f)[:1] for f in FIELDS))
    with pytest.raises(IncompleteTraceError, match="no step of the trace can be used: no producer"):
        profile_of_trace(Trace(empty, trace.calls, ()))


FIELDS = ("node", "start_ns", "end_ns")


@pytest.mark.parametrize("rank", [0, 1])
def test_trace_of_the_profiler(traced: Job, three_groups: Plan, rank: int) -> None:
    trace = read_trace(find_trace(Path(traced.folder, f"profiler.{rank}")))
    found = profile_of_trace(trace)
    sizes = {t.name: t.num_bytes for t in found.measured.profile.tensors}
    assert sizes == dict(zip(three_groups.tensor_names, three_groups.num_bytes, strict=True))
    assert 1 <= found.measured.num_steps <= 3
    assert found.measured.profile.compute_seconds.sum() > 0


@pytest.mark.parametrize("rank", [0, 1])
def test_trace_of_the_keras_callback(traced: Job, rank: int) -> None:
    trace = read_trace(find_trace(Path(traced.folder, f"keras.{rank}")))
    found = profile_of_trace(trace)
    sizes = {t.name: t.num_bytes for t in found.measured.profile.tensors}
    assert sizes == traced.value("keras_callback", rank)["num_bytes"]
    # Batches 12 to 16, and one all-reduce after backward.
    assert found.measured.num_steps + sum(found.problems.values()) == 5
    assert found.measured.profile.compute_seconds.sum() > 0
