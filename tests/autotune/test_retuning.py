"""Retuning on a machine that changes."""

from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import pytest

from tests.autotune.machine import (
    AFTER,
    BEFORE,
    MODEL,
    NUM_WORKERS,
    PROFILE,
    Machine,
    drive,
    linked,
)
from tf_libra import strategies
from tf_libra.autotune import (
    RETUNE_STEPS_PER_CHECK,
    STEPS_PER_DRIFT_CHECK,
    Budget,
    DriftVerdict,
    Phase,
    Retuner,
    Trial,
    TrialResult,
    Tuner,
    TuningResult,
    tune,
)
from tf_libra.autotune.trial_comparison import Race
from tf_libra.cost_model import ContentionModel
from tf_libra.planning import make_plan
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

SLOW = linked(0.1)


@dataclass
class Training:
    """Steps under a machine's active plan, with drift checks and retuning, as in a session."""

    machine: Machine
    conclusion: TuningResult
    share: float = 0.02
    found: list[DriftVerdict] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    num_trials: int = 0
    total_seconds: float = 0.0
    extra_seconds: float = 0.0
    is_kept: bool = False

    def __post_init__(self) -> None:
        self.again = Retuner(self.share, self.conclusion, self._tuner, self.is_kept)

    def _tuner(self, active_plan: Plan) -> Tuner:
        budget = Budget(max_seconds=1e8)
        strategy = strategies.Libra()

        def clock() -> float:
            return self.machine.seconds

        return tune(
            self.machine.specs(),
            strategy,
            NUM_WORKERS,
            budget,
            leaves_records=True,
            clock=clock,
            active_plan=active_plan,
        )

    def run(self, num_looks: int) -> None:
        for _ in range(num_looks):
            steady_seconds = 0.0
            for _ in range(STEPS_PER_DRIFT_CHECK):
                steady_seconds = self._steady_seconds()
                self.again.drift.record_step(steady_seconds)
            self.found.append(self.again.check())
            if self.found[-1] in (
                DriftVerdict.DRIFTED,
                DriftVerdict.CACHE_STALE,
                DriftVerdict.RETUNING,
            ):
                self._retune(steady_seconds)

    def _steady_seconds(self) -> float:
        seconds = self.machine.run(self.conclusion.plan).seconds
        self.total_seconds += seconds
        return seconds

    def _retune(self, steady_seconds: float) -> None:
        observation: TrialResult | None = None
        most = (
            Budget().max_steps
            if self.found[-1] is DriftVerdict.CACHE_STALE
            else RETUNE_STEPS_PER_CHECK
        )
        for _ in range(most + 1):
            what = self.again.next_trial(observation)
            if what is None:
                return
            if isinstance(what, TuningResult):
                self.conclusion = what
                self.plans.append(what.plan)
                return
            seen = self.machine.run(what.plan)
            self.again.drift.record_trial(seen.seconds)
            self.num_trials += 1
            self.total_seconds += seen.seconds
            self.extra_seconds += max(seen.seconds - steady_seconds, 0.0)
            observation = seen if what.traced else replace(seen, production=None)
        raise AssertionError("a dose does not end")


@cache
def tuned() -> TuningResult:
    return drive(Machine())[0]


def training(machine: Machine, **options: Any) -> Training:
    return Training(machine, tuned(), **options)


def is_good(plan: Plan, model: ContentionModel) -> bool:
    best = simulate(PROFILE, make_plan(PROFILE, model, "libra"), model).backward_seconds
    return simulate(PROFILE, plan, model).backward_seconds <= 1.03 * best


def test_slower_link_is_retuned_and_again_after_recovery() -> None:
    run = training(Machine(noise=0.05))
    first = run.conclusion.plan
    run.run(20)
    assert set(run.found) == {DriftVerdict.NO_CHANGE}
    run.machine.model = SLOW
    assert not is_good(first, SLOW)
    run.run(300)
    assert run.found.count(DriftVerdict.DRIFTED) == 1
    assert len(run.plans) == 1
    assert is_good(run.conclusion.plan, SLOW)
    run.machine.model = MODEL
    run.run(300)
    assert len(run.plans) == 2
    assert is_good(run.conclusion.plan, MODEL)
    assert run.extra_seconds <= 0.025 * run.total_seconds


def test_cached_plan_on_a_slower_link_is_retuned_without_pauses() -> None:
    """The first retuning takes a full tuning's steps; later ones are limited by their share."""
    run = training(Machine(noise=0.05, model=SLOW), is_kept=True)
    run.run(2)
    assert run.found == [DriftVerdict.NO_CHANGE, DriftVerdict.CACHE_STALE]
    assert len(run.plans) == 1 and 0 < run.num_trials <= Budget().max_steps
    assert is_good(run.conclusion.plan, SLOW)
    rate = tuned().bytes_per_second
    assert rate is not None and run.conclusion.bytes_per_second is not None
    assert run.conclusion.bytes_per_second < rate / 5
    run.run(20)
    assert set(run.found[2:]) == {DriftVerdict.NO_CHANGE}
    before, run.extra_seconds, run.total_seconds = run.num_trials, 0.0, 0.0
    run.machine.model = MODEL
    run.run(300)
    assert run.found.count(DriftVerdict.CACHE_STALE) == run.found.count(DriftVerdict.DRIFTED) == 1
    assert run.num_trials > before and is_good(run.conclusion.plan, MODEL)
    assert run.extra_seconds <= 0.025 * run.total_seconds


def test_burst_does_not_end_before_a_trial_that_has_to_follow() -> None:
    plan = tuned().plan

    def trials(active_plan: Plan) -> Tuner:
        while True:
            yield Trial(Phase.RACE, plan, traced=False)
            yield Trial(Phase.RACE, plan, traced=False)
            yield Trial(Phase.RACE, plan, traced=False, is_consecutive=True)

    retuner = Retuner(1.0, tuned(), trials)
    for _ in range(2):
        retuner.drift.record_step(1e3)
        retuner.check()
    bursts = [retuner.next_trial(None) for _ in range(RETUNE_STEPS_PER_CHECK + 3)]
    assert RETUNE_STEPS_PER_CHECK % 3 == 2  # the last one is unmeasured
    *burst, extra, after, later = bursts
    assert len(burst) == RETUNE_STEPS_PER_CHECK and None not in burst
    assert isinstance(extra, Trial) and extra.is_consecutive
    assert (after, later) == (None, None)


def test_cached_plan_on_its_network_stays_active() -> None:
    run = training(Machine(noise=0.05), is_kept=True)
    run.run(20)
    assert set(run.found) == {DriftVerdict.NO_CHANGE} and run.num_trials == 0


def test_active_plan_stays_if_none_is_faster() -> None:
    """The whole machine becomes slower, so all plans do."""
    run = training(Machine(noise=0.01))
    first = run.conclusion.plan
    run.machine.profile = BackwardProfile.from_arrays(
        [t.num_bytes for t in PROFILE.tensors],
        [t.compute_seconds * 3 for t in PROFILE.tensors],
        [t.name for t in PROFILE.tensors],
    )
    run.machine.model = replace(linked(1 / 3), hop_latency=MODEL.hop_latency * 3)
    run.run(300)
    assert [plan.fingerprint for plan in run.plans] == [first.fingerprint]
    # Its notes are current: one race, and the prediction of the present model.
    [plan] = run.plans
    now = run.conclusion.predicted(plan)
    assert now is not None and plan.predicted_seconds == now.backward_seconds
    assert len([note for note in plan.notes if note.startswith("interleaved trials over")]) == 1


@pytest.mark.parametrize("name", ["aiacc", "auto"])
def test_searched_active_plan_is_predicted_again(name: str) -> None:
    """The machine becomes three times slower after the race."""
    before, _ = drive(Machine(), name, Budget(150, 1e6), runs_streams=True)
    of_then = replace(before.plan, predicted_seconds=9.0)
    assert any(note.startswith("interleaved trials over") for note in of_then.notes)
    machine = Machine(model=replace(linked(1 / 3), hop_latency=MODEL.hop_latency * 3))
    now, _ = drive(machine, name, Budget(150, 1e6), runs_streams=True, active_plan=of_then)
    assert now.race is not None
    [raced] = [o.plan for o in now.race.candidates if o.plan.fingerprint == of_then.fingerprint]
    assert raced.predicted_seconds != 9.0
    assert not any(note.startswith("interleaved trials over") for note in raced.notes)


def test_model_error_is_no_drift() -> None:
    """Without a race the time of a step is unknown: the first drift check measures it."""
    alone = replace(tuned(), race=None, rest_seconds=BEFORE + AFTER)
    predicted = alone.predicted_step(alone.plan)
    winner = replace(tuned().race.winner, seconds=(predicted,), places=())
    for conclusion in (alone, replace(alone, race=Race((winner,)))):
        again = Retuner(1.0, conclusion, partial(_blind, Machine()))
        assert again.drift.expected_seconds is None
        for _ in range(4):
            for _ in range(STEPS_PER_DRIFT_CHECK):
                again.drift.record_step(2 * predicted)
            assert again.check() is DriftVerdict.NO_CHANGE
        assert again.drift.expected_seconds == 2 * predicted


def test_recovery_before_a_result_changes_nothing() -> None:
    run = training(Machine())
    first = run.conclusion.plan
    run.machine.model = SLOW
    while DriftVerdict.DRIFTED not in run.found:
        run.run(1)
    run.machine.model = MODEL
    run.run(100)
    assert DriftVerdict.RECOVERED in run.found
    assert run.plans == [] and run.conclusion.plan == first


@pytest.mark.parametrize("period", [3, 20])
def test_oscillating_machine_is_retuned_less_and_less(period: int) -> None:
    run = training(Machine(noise=0.02))
    for index in range(400 // period):
        run.machine.model = SLOW if index % 2 else MODEL
        run.run(period)
    begun = [index for index, found in enumerate(run.found) if found is DriftVerdict.DRIFTED]
    assert len(begun) <= 8
    assert run.extra_seconds <= 0.025 * run.total_seconds


def test_retuning_costs_its_share() -> None:
    share = 0.001
    run = training(Machine(), share=share)
    run.machine.model = SLOW
    run.run(200)
    # One dose goes by a guess.
    assert run.extra_seconds <= share * run.total_seconds + 2 * RETUNE_STEPS_PER_CHECK * 0.05


def test_plan_stays_active_if_retuning_has_no_measurements() -> None:
    """No step can be traced, so there is no model and no race."""
    again = Retuner(1.0, tuned(), partial(_blind, Machine()))
    for _ in range(10):
        for _ in range(STEPS_PER_DRIFT_CHECK):
            again.drift.record_step(1.0)
        if again.check() is DriftVerdict.DRIFTED:
            break
    observation, results = None, []
    for _ in range(20):
        for _ in range(RETUNE_STEPS_PER_CHECK + 1):
            what = again.next_trial(observation)
            results.append(what)
            if what is None:
                break
            assert not isinstance(what, TuningResult)
            observation = replace(Machine().run(what.plan), production=None, problem="busy")
        for _ in range(STEPS_PER_DRIFT_CHECK):
            again.drift.record_step(1.0)
        if again.check() is DriftVerdict.NO_CHANGE:
            break
    assert results[-1] is None
    assert again.drift.expected_seconds == 1.0


def _blind(machine: Machine, active_plan: Plan) -> Tuner:
    return tune(
        machine.specs(),
        strategies.Libra(),
        NUM_WORKERS,
        Budget(max_seconds=1e8),
        leaves_records=True,
        active_plan=active_plan,
    )
