from tf_libra.autotune import Phase
from tf_libra.profiling.overlap_samples import MeasuredTimeline
from tf_libra.reporting.facts import RunSnapshot


def test_medians_are_of_what_was_measured() -> None:
    timelines = tuple(MeasuredTimeline((), 0.1, seconds) for seconds in (0.3, 0.1, 0.9))
    facts = RunSnapshot(timelines=timelines, step_seconds={Phase.RUN: (0.4, 0.2)})
    assert facts.median_backward_seconds() == 0.3
    assert round(facts.median_step_seconds(Phase.RUN) or 0.0, 9) == 0.3


def test_what_was_not_measured_has_none() -> None:
    assert RunSnapshot().median_backward_seconds() is None
    assert RunSnapshot(step_seconds={Phase.RACE: ()}).median_step_seconds(Phase.RACE) is None
    assert RunSnapshot().median_step_seconds(Phase.RUN) is None
