"""Rank 0's drift checks, and what it decides after them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from tests.autotune.machine import Machine, drive
from tests.backends.alone import alone
from tests.runtime.alone import LANES
from tf_libra import config
from tf_libra.autotune import (
    RETUNE_STEPS_PER_CHECK,
    STEPS_PER_DRIFT_CHECK,
    Budget,
    Phase,
    PlanSource,
    TensorSpec,
    Trial,
    Tuner,
    TuningResult,
)
from tf_libra.autotune.trial_comparison import Candidate, Race
from tf_libra.backends.engine import Engine
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime import grappler
from tf_libra.runtime.directive import Decision, KeepPlan
from tf_libra.runtime.grappler import GraphReport, PlacedGroup, PlacedTensor, RewriteReport
from tf_libra.runtime.tuning_coordinator import TuningCoordinator, with_reported_updates

KEEP, TRY = KeepPlan(then_try=False), KeepPlan(then_try=True)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    running = alone()
    yield running
    running.close()


def result(seconds: float) -> TuningResult:
    found, _ = drive(Machine(), budget=Budget(max_steps=1))
    return found.with_race(Race((Candidate(found.plan, None, (seconds, seconds)),)))


def watching(engine: Engine, seconds: float, source: PlanSource) -> TuningCoordinator:
    """Returns a coordinator whose active plan took `seconds` in its trials."""
    tried = result(seconds)

    def tuner(*args: object, in_force: object = None, **kwargs: object) -> Tuner:
        for _ in range(RETUNE_STEPS_PER_CHECK + 1):
            yield Trial(Phase.RACE, tried.plan, traced=False)
        return tried

    options = config.resolve({"tuning": config.Tuning(retune_overhead=1.0), "engine": "lanes"})
    tensors = (TensorSpec("w", 8, "float32"),)
    found = TuningCoordinator(engine, options, RunReporter(options), tensors, {}, tuner)
    found.on_activated(tried, source, is_watched=True)
    return found


def test_result_predicts_updates_that_the_pass_has_left_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuned = result(1.0)
    first, second, *others = tuned.plan.tensor_names

    def group(index: int, names: Sequence[str], whole: str = "") -> PlacedGroup:
        tensors = tuple(PlacedTensor(name, "") for name in names)
        return PlacedGroup(index, "", 1, 0, "float", tensors, (), not whole, whole)

    groups = group(0, [first, second], "a print reads the gradient"), group(1, others)
    found = RewriteReport((GraphReport("step", True, groups, (), ()),))
    monkeypatch.setattr(grappler, "report", lambda plan: found)
    reported = with_reported_updates(replace(tuned, whole_updates=(second,)))
    assert reported.whole_updates == (second, first)
    assert with_reported_updates(reported) is reported
    assert TuningResult.from_json(reported.to_json()) == reported


def run_to_check(coordinator: TuningCoordinator, seconds: float, step: int) -> Decision:
    for _ in range(STEPS_PER_DRIFT_CHECK):
        coordinator.record_step(seconds, is_steady=True, num_steps=1)
    decision, _ = coordinator.decide(step, None, is_running=True)
    return decision


@pytest.mark.parametrize(("seconds", "drifts"), [(1.1, False), (2.0, True), (0.5, True)])
def test_steps_of_another_duration_start_trials(
    engine: Engine, seconds: float, drifts: bool
) -> None:
    coordinator = watching(engine, 1.0, PlanSource.TUNED)
    checks = [run_to_check(coordinator, seconds, step) for step in range(3)]
    assert (TRY in checks) == drifts
    if drifts:
        burst = [
            coordinator.decide(9, None, is_running=False)[0]
            for _ in range(RETUNE_STEPS_PER_CHECK + 1)
        ]
        assert [type(decision) for decision in burst] == [Trial] * RETUNE_STEPS_PER_CHECK + [
            KeepPlan
        ]
        assert burst[-1] == KEEP


def test_stale_cached_plan_is_retuned_without_a_pause(engine: Engine) -> None:
    coordinator = watching(engine, 1.0, PlanSource.CACHED)
    assert [run_to_check(coordinator, 10.0, step) for step in range(2)] == [KEEP, TRY]
    found = [
        coordinator.decide(9, None, is_running=False)[0] for _ in range(RETUNE_STEPS_PER_CHECK + 2)
    ]
    assert [type(decision) for decision in found] == [Trial] * (RETUNE_STEPS_PER_CHECK + 1) + [
        TuningResult
    ]


def test_unwatched_plan_records_nothing(engine: Engine) -> None:
    coordinator = watching(engine, 1.0, PlanSource.TUNED)
    coordinator.on_activated(result(1.0), PlanSource.TUNED, is_watched=False)
    coordinator.record_step(9.0, is_steady=True, num_steps=1)
    coordinator.record_trial(9.0)
    with pytest.raises(AssertionError):
        coordinator.decide(1, None, is_running=True)


def test_coordinator_uses_the_backend(engine: Engine) -> None:
    requested: list[dict[str, object]] = []

    def tuner(*args: object, **kwargs: object) -> Tuner:
        requested.append(kwargs)
        yield Trial(Phase.MEASURE, result(1.0).plan, traced=True)
        return result(1.0)

    options = config.resolve({"engine": "lanes"})
    tensors = (TensorSpec("w", 8, "float32"),)
    coordinator = TuningCoordinator(engine, options, RunReporter(options), tensors, {}, tuner)
    decision, source = coordinator.decide(1, None, is_running=False)
    assert isinstance(decision, Trial) and source is PlanSource.TUNED
    assert requested[0]["hops"] == LANES.hops
    decision, _ = coordinator.decide(2, None, is_running=False)
    assert isinstance(decision, TuningResult)
