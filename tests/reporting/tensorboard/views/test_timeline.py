"""Views of timelines, and of one step of all ranks."""

from dataclasses import replace

import pytest

from tests.reporting.tensorboard import examples
from tf_libra.planning import data_parallel as strategies
from tf_libra.planning import make_plan
from tf_libra.reporting.records.step import StepRecord
from tf_libra.reporting.tensorboard.views.timeline import (
    measured_timeline,
    predicted_timeline,
    ranks_view,
)
from tf_libra.simulation import simulate

RECORD = examples.plan_record()


def test_all_reduce_outside_of_the_plan_has_no_group() -> None:
    measured = examples.timeline_record(RECORD)
    alone = replace(measured.spans[0], group=-1)
    shown = measured_timeline(RECORD, replace(measured, spans=(alone, *measured.spans)))
    first, *groups = shown["spans"]
    assert (first["group"], first["start"], first["stop"], first["stream"]) == (-1, None, None, 0)
    assert [group["start"] for group in groups] == [group.start for group in RECORD.plan.groups]


def test_gathers_follow_the_boundary_of_the_step() -> None:
    strategy = strategies.Dear(buffer_bytes=1 << 20)
    view = predicted_timeline(RECORD, strategy)
    profile, cost = RECORD.conclusion.whole_profile, RECORD.conclusion.cost_model
    assert profile is not None and cost is not None
    plan = make_plan(profile, cost, strategy)
    timeline = simulate(profile, plan, cost)
    shown = view["next_forward"]
    assert shown["boundary"] == timeline.boundary_seconds
    assert [gather["stop"] for gather in shown["gathers"]] == [g.stop for g in plan.gathers]
    assert shown["gathers"][0]["from"] == shown["boundary"]
    for gather in shown["gathers"]:
        assert gather["from"] <= gather["to"] <= gather["layers_from"] <= gather["layers_to"]
    assert shown["end"] == shown["gathers"][-1]["layers_to"]
    assert predicted_timeline(RECORD)["next_forward"] is None


LATE_NS = 2_000_000


def late(step: StepRecord, rank: int, by_ns: int, clock_ns: int = 0) -> StepRecord:
    """Returns another rank's step with later groups and another clock."""
    spans = tuple(
        replace(
            reduce,
            enqueued_ns=reduce.enqueued_ns + by_ns + clock_ns,
            started_ns=reduce.started_ns + by_ns + clock_ns,
            first_byte_ns=reduce.started_ns + by_ns + clock_ns,
            finished_ns=reduce.finished_ns + by_ns + clock_ns,
        )
        for reduce in step.all_reduces
    )
    return replace(step, rank=rank, all_reduces=spans, backward_start_ns=None, produced_ns=())


def waiting(step: StepRecord) -> StepRecord:
    """Returns rank 0's step, which waits for the late rank in every group."""
    spans = tuple(
        replace(
            reduce,
            first_byte_ns=reduce.started_ns + LATE_NS,
            finished_ns=reduce.finished_ns + LATE_NS,
        )
        for reduce in step.all_reduces
    )
    return replace(step, all_reduces=spans, host="first")


FIRST = waiting(examples.traced_step(RECORD, 1.0, 3))


@pytest.mark.parametrize("clock_ns", [0, 10**9])
def test_waits_are_separate_from_exchanges_under_any_clock(clock_ns: int) -> None:
    other = late(examples.traced_step(RECORD, 1.0, 3), 1, LATE_NS, clock_ns)
    view = ranks_view(RECORD, [FIRST, other])
    assert view is not None
    assert [rank["rank"] for rank in view["ranks"]] == [0, 1]
    assert view["ranks"][0]["host"] == "first"
    assert view["ranks"][0]["computation"]["from"] == 0
    assert view["ranks"][1]["computation"] is None
    for span in view["ranks"][0]["spans"]:
        assert span["ready"] <= span["from"] < span["exchange"] <= span["to"]
        assert span["exchange"] - span["from"] == pytest.approx(LATE_NS * 1e-9)
    # Clocks of one host are one; of several, so much of a difference is not known.
    unknown = view["ranks"][1]["clock_error_seconds"] if clock_ns else 0.0
    for group in view["groups"]:
        assert group["last_rank"] == 1
        assert group["skew_seconds"] == pytest.approx(LATE_NS * 1e-9, abs=unknown + 1e-9)


def test_gathers_under_the_forward_pass_begin_before_backward() -> None:
    first = FIRST.all_reduces[0]
    assert FIRST.backward_start_ns is not None
    before_ns = FIRST.backward_start_ns - 1_000_000
    gather = replace(first, group=1, started_ns=before_ns, tensors=(0, 2))
    view = ranks_view(RECORD, [replace(FIRST, gathers=(gather,))])
    assert view is not None
    [shown] = view["ranks"][0]["gathers"]
    assert (shown["group"], shown["num_tensors"]) == (1, 2)
    assert shown["from"] == pytest.approx(-1e-3)
    assert len(view["ranks"][0]["spans"]) == len(FIRST.all_reduces)


def test_last_complete_step_is_shown_by_default() -> None:
    steps = [examples.traced_step(RECORD, 1.0, number) for number in (1, 2, 3)]
    others = [late(step, 1, 0) for step in steps[:2]]
    view = ranks_view(RECORD, [*steps, *others])
    assert view is not None
    assert view["step"] == steps[1].step
    assert view["steps"] == [steps[0].step, steps[1].step]
    requested = ranks_view(RECORD, [*steps, *others], steps[0].step)
    assert requested is not None
    assert requested["step"] == steps[0].step


def test_ranks_view_without_steps_is_none() -> None:
    assert ranks_view(RECORD, []) is None
