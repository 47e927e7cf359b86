"""All-reduces in the traces of TensorFlow's profiler, as two workers have left them."""

import itertools
from pathlib import Path

import pytest

from tests.worker_processes import Job
from tf_libra.profiling.xplane import Trace, find_trace, read_trace
from tf_libra.specs.plan import Plan


def trace(job: Job, name: str, rank: int) -> Trace:
    return read_trace(find_trace(Path(job.folder, f"{name}.{rank}")))


@pytest.mark.parametrize("rank", [0, 1])
def test_every_all_reduce_is_there_once_on_each_of_its_lanes(
    traced: Job, three_groups: Plan, rank: int
) -> None:
    found = [lane for lane in trace(traced, "profiler", rank).lanes if not lane.phase]
    executed = traced.value("profiler", rank)["telemetry"]
    assert len(executed) == 3 * len(three_groups.groups)
    for record in executed:
        lanes = [event for event in found if event.sequence == record["sequence"]]
        assert sorted(lane.lane for lane in lanes) == list(range(record["num_threads"]))
        for lane in lanes:
            assert lane.group == record["group"]
            assert lane.num_threads == record["num_threads"]
            assert lane.num_bytes == record["num_bytes"]
            assert lane.step == record["step"]
    assert len(found) == sum(record["num_threads"] for record in executed)


@pytest.mark.parametrize("rank", [0, 1])
def test_times_are_those_of_telemetry(traced: Job, rank: int) -> None:
    found = [lane for lane in trace(traced, "profiler", rank).lanes if not lane.phase]
    # The trace counts from its start, which both clocks have in common.
    shifts = set()
    for record in traced.value("profiler", rank)["telemetry"]:
        lanes = [event for event in found if event.sequence == record["sequence"]]
        shifts.add(record["started_ns"] - min(lane.start_ns for lane in lanes))
        # The record is completed after the last lane's event.
        assert record["finished_ns"] - min(shifts) >= max(lane.end_ns for lane in lanes)
    assert max(shifts) - min(shifts) <= 1, shifts  # picoseconds are rounded to nanoseconds


@pytest.mark.parametrize("rank", [0, 1])
def test_phases_lie_within_their_all_reduce_and_fill_it(traced: Job, rank: int) -> None:
    for lane, events in itertools.groupby(
        sorted(trace(traced, "profiler", rank).lanes, key=lambda event: event.lane),
        key=lambda event: event.lane,
    ):
        by_sequence: dict[int, dict[str, tuple[int, int]]] = {}
        for event in events:
            by_sequence.setdefault(event.sequence, {})[event.phase] = (event.start_ns, event.end_ns)
        assert by_sequence, lane
        for phases in by_sequence.values():
            whole, wait, exchange = phases[""], phases["wait"], phases["exchange"]
            assert wait[0] == whole[0]
            assert wait[1] == exchange[0]
            assert exchange[1] == whole[1]


@pytest.mark.parametrize("rank", [0, 1])
def test_ops_say_what_they_reduce_and_where_it_comes_from(
    traced: Job, three_groups: Plan, rank: int
) -> None:
    seen = trace(traced, "profiler", rank)
    assert len(seen.calls) == 3 * len(three_groups.groups)
    nodes = set(seen.events.node_names)
    for call in seen.calls:
        group = three_groups.groups[call.group]
        assert call.plan == traced.value("profiler", rank)["plan_id"]
        assert call.num_threads == group.num_threads
        assert call.tensor_names == three_groups.tensor_names[group.start : group.stop]
        assert call.num_bytes == three_groups.num_bytes[group.start : group.stop]
        assert all("gradient_tape/" in producer for producer in call.producers)
        assert any(producer in nodes for producer in call.producers)


@pytest.mark.parametrize("rank", [0, 1])
def test_names_survive_the_syntax_of_the_profiler(traced: Job, rank: int) -> None:
    [name] = traced.value("hostile_name", rank)
    assert "#" in name
    [call] = trace(traced, "hostile", rank).calls
    assert call.tensor_names == (name,)
    assert call.num_bytes == (8,)
