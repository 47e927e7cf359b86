"""When tuning is over: no experiment is left, or the budget is spent."""

import numpy as np
import pytest

from tests.tuning.machine import PROFILE, Machine, drive
from tf_libra import units
from tf_libra.tuning import Budget, EndOfTuning, Phase


@pytest.mark.parametrize("max_steps", [1, 3])
def test_every_experiment_takes_a_step_of_the_budget(max_steps: int) -> None:
    end = EndOfTuning(Budget(max_steps, 1e9))
    assert [end.has_come() for _ in range(max_steps)] == [False] * max_steps
    assert not end.came_early
    assert end.has_come()
    assert end.has_come()
    assert end.came_early


def test_seconds_count_from_when_it_is_made() -> None:
    now = 100.0
    end = EndOfTuning(Budget(10, 2.0), clock=lambda: now)
    now = 101.9
    assert not end.has_come()
    now = 102.0
    assert end.has_come()
    assert "2 s" in end.note()


@pytest.mark.parametrize("max_steps", [1, 2, 3, 4, 5, 8, 11, 12, 13, 16, 17, 30, 36])
def test_budget_of_steps_is_kept_and_a_plan_made_all_the_same(max_steps: int) -> None:
    tuned, experiments = drive(Machine(noise=0.1), budget=Budget(max_steps, 1e9))
    assert len(experiments) == max_steps
    assert tuned.plan.tensor_names == PROFILE.names
    assert any(f"the budget of {max_steps} steps" in note for note in tuned.notes)
    assert not tuned.is_complete
    assert tuned.plan.notes[-len(tuned.notes) :] == tuned.notes


def test_budget_that_is_not_spent_is_not_mentioned() -> None:
    tuned, experiments = drive(Machine(), budget=Budget(1000, 1e9))
    assert len(experiments) <= 60
    assert not any("budget" in note for note in tuned.notes)


@pytest.mark.parametrize(("rounds", "more"), [(0, 1), (1, 0), (1, -1), (2, -1), (2, 0), (2, 1)])
def test_race_that_the_budget_cuts_short_leaves_a_plan_and_a_whole_conclusion(
    rounds: int, more: int
) -> None:
    whole, experiments = drive(Machine(noise=0.1))
    assert whole.race is not None
    before = sum(one.phase is not Phase.RACE for one in experiments)
    max_steps = before + rounds * len(whole.race.contenders) + more
    tuned, experiments = drive(Machine(noise=0.1), budget=Budget(max_steps, 1e9))
    assert len(experiments) == max_steps
    assert tuned.is_complete
    assert not any("budget" in note for note in tuned.notes)
    # The first round pays for the plans' instantiation.
    assert (tuned.race is None) == (max_steps < before + 2 * len(whole.race.contenders))


def test_default_budget_suffices() -> None:
    assert not any("budget" in note for note in drive(Machine())[0].notes)


@pytest.mark.parametrize("max_seconds", [0.01, 0.26, 1.0, 1.8])
def test_budget_of_seconds_is_kept(max_seconds: float) -> None:
    tuned, experiments = drive(Machine(), budget=Budget(1000, max_seconds))
    # A step takes 0.05 s; one that was begun in time is finished.
    assert len(experiments) == int(np.ceil(max_seconds / 0.05))
    assert tuned.plan.tensor_names == PROFILE.names
    assert any(f" or {units.time(max_seconds)} ended" in note for note in tuned.notes)
