"""Figures of a timeline are sums of its stages."""

import pytest

from tf_libra.simulation.timeline import GroupSpan, Timeline, TimelineStage

STAGES = (
    TimelineStage(0.0, 0.0, 2.0, 0.0),
    TimelineStage(2.0, 3.0, 1.0, 0.0),
    TimelineStage(6.0, 0.5, 0.0, 1.5),
)
SPANS = (GroupSpan(2.0, 2.0, 5.0), GroupSpan(6.0, 6.0, 8.0))


def test_a_stage_ends_where_the_next_begins():
    assert [stage.seconds for stage in STAGES] == [2.0, 4.0, 2.0]
    assert [stage.end_seconds for stage in STAGES] == [2.0, 6.0, 8.0]


@pytest.mark.parametrize(("updates", "step"), [(0.0, 8.0), (7.0, 8.0), (9.0, 9.0)])
def test_a_step_ends_with_the_last_all_reduce_or_update(updates, step):
    timeline = Timeline(STAGES, SPANS, updates)
    assert timeline.backward_seconds == 8.0
    assert timeline.step_seconds == step


def test_computation_ends_before_residual_communication():
    assert Timeline(STAGES, SPANS).computation_end_seconds == 6.5
    assert Timeline(STAGES[:2], SPANS[:1]).computation_end_seconds == 6.0
    after = (
        TimelineStage(0.0, 0.0, 2.0, 0.0),
        TimelineStage(2.0, 0.0, 0.0, 1.0),
        TimelineStage(3.0, 0.0, 0.0, 1.0),
    )
    assert Timeline(after, SPANS).computation_end_seconds == 2.0
    nothing = (TimelineStage(0.0, 0.0, 0.0, 0.0), TimelineStage(0.0, 0.0, 0.0, 1.0))
    assert Timeline(nothing, SPANS[:1]).computation_end_seconds == 0.0
