"""Budgets: steps, seconds, and plans of tuning that ends early."""

import math

import pytest

from tests.autotune.machine import PROFILE, SHARED, Machine, drive
from tf_libra.autotune import Budget, BudgetTracker, TrialResult
from tf_libra.config import resolve
from tf_libra.internal import formatting
from tf_libra.specs.plan import Plan


@pytest.mark.parametrize("max_steps", [1, 3])
def test_budget_grants_one_step_per_trial(max_steps: int) -> None:
    end = BudgetTracker(Budget(max_steps, 1e9))
    assert [end.take_step() for _ in range(max_steps)] == [True] * max_steps
    assert not end.ended_early
    assert not end.take_step()
    assert not end.take_step()
    assert end.ended_early


def test_budget_seconds_count_from_construction() -> None:
    now = 100.0
    end = BudgetTracker(Budget(10, 2.0), clock=lambda: now)
    now = 101.9
    assert end.take_step()
    now = 102.0
    assert not end.take_step()
    assert "2 s" in end.exhaustion_note()


def test_budget_note_omits_unlimited_seconds() -> None:
    now = 0.0
    end = BudgetTracker(Budget(3, math.inf), clock=lambda: now)
    for _ in range(3):
        assert end.take_step()
        now += 1e9
    assert end.steps_left == 0 and not end.take_step()
    assert "budget of 3 steps" in end.exhaustion_note()
    with pytest.raises(ValueError, match="max_seconds"):
        Budget(3, math.nan)


def test_steps_left_follow_from_median_durations() -> None:
    now = 0.0
    end = BudgetTracker(Budget(100, 30.0), clock=lambda: now)
    assert end.steps_left == 100
    assert end.affords(50, 50) and not end.affords(51, 50)
    # The first of all takes longer than any later one, and does not count.
    for is_first, seconds in (
        (True, 10.0),
        (True, 4.0),
        (False, 1.0),
        (False, 9.0),
        (False, 1.0),
    ):
        assert end.take_step(is_first)
        now += seconds
    assert end.take_step(True)
    assert end.steps_left == 5
    assert end.affords(1, 1) and not end.affords(1, 2) and not end.affords(2, 0)
    now = 28.0
    assert not end.take_step(True)  # another would take 3.5 s, the median of 4 and 3
    assert end.ended_early
    assert end.take_step()


def test_min_steps_are_granted_after_the_deadline() -> None:
    now = 0.0
    end = BudgetTracker(Budget(100, 20.0, min_steps=3), clock=lambda: now)
    for number in range(4):
        assert end.take_step() == (number < 3)
        now += 15.0
    assert end.steps_left == 0


@pytest.mark.parametrize("max_steps", [1, 2, 3, 4, 5, 8, 10, 11, 12, 17, 30])
def test_short_step_budget_is_not_exceeded_and_yields_a_plan(max_steps: int) -> None:
    tuned, experiments = drive(Machine(noise=0.1), budget=Budget(max_steps, 1e9))
    # Of what is left after measuring, a few steps are no race.
    assert min(max_steps, 5) <= len(experiments) <= max_steps
    assert tuned.plan.tensor_names == PROFILE.names
    assert any(f"budget of {max_steps} steps" in note for note in tuned.notes)
    assert not tuned.is_complete
    assert tuned.plan.notes[-len(tuned.notes) :] == tuned.notes
    assert (tuned.profile is None) == (max_steps < 2)
    assert (tuned.race is None) == (max_steps < 11)
    if tuned.race is None:
        assert tuned.plan.strategy == ("syneasgd" if tuned.profile is None else "mg-wfbp")


def test_unspent_budget_leaves_no_note() -> None:
    tuned, experiments = drive(Machine(), budget=Budget(1000, 1e9))
    assert len(experiments) <= 60
    assert not any("budget" in note for note in tuned.notes)


@pytest.mark.parametrize("is_trusted", [True, False])
@pytest.mark.parametrize(("then", "rounds"), [(0.3, 0), (0.12, 1), (0.07, 2)])
def test_interrupted_race_yields_a_plan_cached_only_if_reliable(
    then: float, rounds: int, is_trusted: bool
) -> None:
    """The machine becomes slow when the race starts; a single round decides nothing."""

    class Slowing(Machine):
        count = 0

        def run(self, plan: Plan) -> TrialResult:
            self.count += 1
            self.step_seconds = 0.05 if self.count <= 22 else then
            return super().run(plan)

    machine = Slowing(model=SHARED, noise=0.1)
    limit = 0.25 if is_trusted else 1e-6
    tuned, _ = drive(machine, budget=Budget(60, 2.15), max_model_error=limit)
    assert machine.seconds <= 2.15 + then
    assert tuned.is_complete is (is_trusted or rounds > 1)
    assert not any("budget" in note for note in tuned.notes)
    # The first round pays for the plans' instantiation.
    assert (0 if tuned.race is None else tuned.race.num_rounds) == (rounds if rounds > 1 else 0)


def test_default_budget_suffices() -> None:
    assert not any("budget" in note for note in drive(Machine())[0].notes)


@pytest.mark.parametrize("max_seconds", [0.01, 0.26, 1.01, 1.8, 2.4])
def test_budget_of_seconds_is_not_exceeded(max_seconds: float) -> None:
    machine = Machine()
    tuned, experiments = drive(machine, budget=Budget(1000, max_seconds))
    # The duration of the first step is unknown.
    assert machine.seconds <= max_seconds or len(experiments) == 1
    assert tuned.plan.tensor_names == PROFILE.names
    of_seconds = any(f" or {formatting.time(max_seconds)} ended" in note for note in tuned.notes)
    assert of_seconds is (max_seconds < 2)


@pytest.mark.parametrize("name", ["libra", "auto", "aiacc"])
@pytest.mark.parametrize("step_seconds", [0.1, 0.52, 0.8, 1.4, 2.5, 5.0, 20.0])
def test_steps_of_any_length_get_a_measured_plan(name: str, step_seconds: float) -> None:
    """Longer steps leave fewer trials, and no race for the longest."""
    machine = Machine(step_seconds=step_seconds)
    options = resolve({"strategy": name})
    budget = options.budget
    tuned, _ = drive(machine, name, budget, runs_streams=True)
    assert machine.seconds <= max(budget.max_seconds, 5 * step_seconds)
    assert tuned.profile is not None
    if step_seconds <= 1.4:
        assert tuned.race is not None and tuned.race.num_rounds >= 2
    if step_seconds <= 0.52:
        # Under "auto" trials of other strategies follow, which get a third of the steps.
        assert tuned.race is not None and tuned.race.num_rounds >= (2 if name == "auto" else 4)
        assert name == "aiacc" or tuned.held_out_error is not None
    if step_seconds >= 5 and (name, step_seconds) != ("aiacc", 5.0):
        assert tuned.plan.strategy == ("syneasgd" if name == "aiacc" else "mg-wfbp")


@pytest.mark.parametrize("first_seconds", [0.7, 1.9, 3.0])
def test_plans_that_take_long_to_instantiate_leave_time_for_a_race(first_seconds: float) -> None:
    machine = Machine(first_seconds=first_seconds)
    tuned, _ = drive(machine, budget=Budget())
    assert machine.seconds <= 30
    assert tuned.race is not None and tuned.race.num_rounds >= 4
    assert (tuned.held_out_error is None) == (first_seconds == 3.0)
