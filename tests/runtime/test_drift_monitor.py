"""When looks are due, and what they come to."""

from tests.autotune.machine import Machine, drive
from tf_libra import config
from tf_libra.autotune import (
    CALLS_PER_LOOK,
    DOSE,
    Budget,
    Phase,
    Retuner,
    Trial,
    Tuner,
    TuningResult,
)
from tf_libra.autotune.interleaved_trials import Candidate, Race
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime.directive import KeepPlan
from tf_libra.runtime.drift_monitor import DriftMonitor
from tf_libra.specs.plan import Plan


def conclusion(seconds: float) -> TuningResult:
    found, _ = drive(Machine(), budget=Budget(max_steps=1))
    return found.after(Race((Candidate(found.plan, None, (seconds, seconds)),)))


def looks(expected_seconds: float, is_kept: bool = False) -> DriftMonitor:
    tried = conclusion(expected_seconds)

    def tuner(in_force: Plan) -> Tuner:
        for _ in range(DOSE + 1):
            yield Trial(Phase.RACE, in_force, traced=False)
        return tried

    again = Retuner(1.0, tried, tuner, is_kept)
    return DriftMonitor(again, RunReporter(config.resolve({})))


def test_they_are_due_on_every_rank_after_as_many_calls() -> None:
    for one in (looks(1.0), DriftMonitor(None, RunReporter(config.resolve({})))):
        for number in range(CALLS_PER_LOOK):
            assert not one.is_due
            one.ran(1.0, usual=number % 2 == 0)
        assert one.is_due
        one.tried(1.0)
        one.begin()
        assert not one.is_due


def test_steps_as_expected_go_on_and_others_are_looked_into() -> None:
    for seconds, tries in ((1.1, False), (2.0, True), (0.5, True)):
        one = looks(1.0)
        found = [KeepPlan()]
        for number in range(3 * CALLS_PER_LOOK):
            if one.is_due:
                found.append(one.look(number))
                one.begin()
            one.ran(seconds, usual=True)
        assert any(how.then_try for how in found) == tries
        if tries:
            dose = [one.next(None) for _ in range(DOSE + 1)]
            assert [type(what) for what in dose] == [Trial] * DOSE + [KeepPlan]
            assert dose[-1] == KeepPlan(then_try=False)


def test_what_another_job_has_left_is_looked_into_without_a_pause() -> None:
    one = looks(1.0, is_kept=True)
    for number in range(2):
        for _ in range(CALLS_PER_LOOK):
            one.ran(10.0, usual=True)
        assert one.look(number) == KeepPlan(then_try=number == 1)
        one.begin()
    found = [one.next(None) for _ in range(DOSE + 2)]
    assert [type(what) for what in found] == [Trial] * (DOSE + 1) + [TuningResult]
