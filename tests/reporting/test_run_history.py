"""History of a run, from its events."""

import dataclasses
import itertools

import pytest

from tests.reporting.tensorboard import examples
from tf_libra.autotune import Phase
from tf_libra.profiling.overlap_samples import MeasuredTimeline
from tf_libra.reporting.run_history import RunHistory, RunSnapshot

RECORD = examples.plan_record()


def test_empty_history_has_an_empty_snapshot() -> None:
    assert RunHistory("lanes").snapshot() == RunSnapshot()


def test_steps_are_counted_by_phase_and_steady_steps_timed() -> None:
    history = RunHistory("lanes")
    for phase, steps in itertools.groupby([Phase.MEASURE] * 3 + [Phase.RUN] * 2):
        assert history.enter_phase(phase)
        for number, _ in enumerate(steps):
            history.add_step(0.1 * (1 + number), is_steady=number > 0, num_steps=2)
        assert not history.enter_phase(phase)
    facts = history.snapshot()
    assert facts.num_steps == {Phase.MEASURE: 6, Phase.RUN: 4}
    assert facts.median_step_seconds(Phase.RUN) == 0.2
    assert facts.step_seconds[Phase.MEASURE] == (0.2, 0.1 * 3)
    assert facts.median_step_seconds(Phase.SAMPLE) is None


@pytest.mark.parametrize("after_backward", [False, True], ids=["the same plan", "another"])
def test_activation_drops_earlier_measurements(
    after_backward: bool,
) -> None:
    """Also if the plan stays active: it is compared with present measurements."""
    history = RunHistory("lanes")
    history.enter_phase(Phase.RUN)
    history.set_plan(RECORD.conclusion)
    history.add_step(0.1, is_steady=True, num_steps=1)
    history.add_timeline(examples.measured(RECORD))
    plan = dataclasses.replace(RECORD.conclusion.plan, after_backward=after_backward)
    history.set_plan(dataclasses.replace(RECORD.conclusion, plan=plan))
    assert history.snapshot().median_step_seconds(Phase.RUN) is None
    assert history.snapshot().timelines == ()
    assert history.snapshot().num_steps == {Phase.RUN: 1}


def test_retuning_trials_are_not_timed() -> None:
    history = RunHistory("lanes")
    for phase, is_retuning, seconds in (
        (Phase.MEASURE, False, 0.1),
        (Phase.RUN, False, 0.2),
        (Phase.MEASURE, True, 9.0),
        (Phase.RUN, True, 0.2),
    ):
        history.enter_phase(phase, is_retuning)
        history.add_step(seconds, is_steady=True, num_steps=1)
    assert history.snapshot().step_seconds == {Phase.MEASURE: (0.1,), Phase.RUN: (0.2, 0.2)}
    assert history.snapshot().num_steps == {Phase.MEASURE: 2, Phase.RUN: 2}


def test_remark_is_new_once() -> None:
    history = RunHistory("horovod")
    assert [history.add_remark(text) for text in ("a", "b", "a")] == [True, True, False]
    assert history.snapshot().remarks == ("a", "b")
    assert history.snapshot().engine == "horovod"
    history.set_engine("lanes")
    assert history.snapshot().engine == "lanes"


def test_snapshot_does_not_change_with_later_events() -> None:
    history = RunHistory("lanes")
    history.set_function("step")
    history.add_timeline(examples.measured(RECORD))
    before = history.snapshot()
    history.set_plan(RECORD.conclusion)
    history.add_timeline(examples.measured(RECORD, 3.0))
    history.add_step(1.0, is_steady=True, num_steps=1)
    assert (before.function, len(before.timelines), before.conclusion) == ("step", 1, None)
    assert before.num_steps == before.step_seconds == {}
    after = history.snapshot()
    assert after.conclusion == RECORD.conclusion
    first, second = (timeline.backward_seconds for timeline in after.timelines)
    assert after.median_backward_seconds() == (first + second) / 2


def test_medians_of_measurements() -> None:
    timelines = tuple(MeasuredTimeline((), 0.1, seconds) for seconds in (0.3, 0.1, 0.9))
    facts = RunSnapshot(timelines=timelines, step_seconds={Phase.RUN: (0.4, 0.2)})
    assert facts.median_backward_seconds() == 0.3
    assert round(facts.median_step_seconds(Phase.RUN) or 0.0, 9) == 0.3


def test_medians_without_measurements_are_none() -> None:
    assert RunSnapshot().median_backward_seconds() is None
    assert RunSnapshot(step_seconds={Phase.RACE: ()}).median_step_seconds(Phase.RACE) is None
    assert RunSnapshot().median_step_seconds(Phase.RUN) is None
