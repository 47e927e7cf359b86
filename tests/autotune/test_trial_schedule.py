"""Choice and order of trials before a fit."""

from collections import Counter

import pytest

from tests.autotune.machine import NUM_WORKERS, PROFILE
from tf_libra.autotune import Phase, trial_schedule
from tf_libra.autotune.budget import Budget, BudgetTracker
from tf_libra.autotune.observations import Observations
from tf_libra.autotune.sampling_plans import one_group_plan, tensor_specs

SPECS = tensor_specs(PROFILE)


@pytest.mark.parametrize(
    "tried",
    [
        trial_schedule.baseline_trials(SPECS, 1, NUM_WORKERS, 2),
        trial_schedule.measuring_trials(SPECS, (1, 2, 4), NUM_WORKERS),
        trial_schedule.sampling_trials(
            trial_schedule.sampled_plans(PROFILE, (1, 2, 4), NUM_WORKERS)
        ),
        trial_schedule.sampling_trials(
            trial_schedule.sampled_plans(PROFILE, (1, 2), NUM_WORKERS), 1
        ),
        trial_schedule.stream_trials(one_group_plan(SPECS, 1, NUM_WORKERS, "syneasgd")),
    ],
)
def test_first_step_of_a_plan_is_marked_and_untraced(tried) -> None:
    seen: set[str] = set()
    for one in tried:
        assert one.is_first == (one.plan.fingerprint not in seen)
        assert not (one.is_first and one.traced)
        seen.add(one.plan.fingerprint)
    assert seen


def test_measuring_communicates_after_backward() -> None:
    tried = list(trial_schedule.measuring_trials(SPECS, (1, 2, 4), NUM_WORKERS))
    assert {one.phase for one in tried} == {Phase.MEASURE}
    assert all(one.plan.after_backward for one in tried)
    assert {g.num_threads for one in tried for g in one.plan.groups} == {1, 2, 4}
    traced = Counter(one.plan.fingerprint for one in tried if one.traced)
    # The fewest and the most threads are looked at most closely.
    first, last = tried[0].plan.fingerprint, tried[-1].plan.fingerprint
    assert traced[first] == traced[last] == max(traced.values())


@pytest.mark.parametrize("num_rounds", [1, 2, trial_schedule.TIMED_ROUNDS])
def test_sampled_plans_take_turns(num_rounds: int) -> None:
    sampled = trial_schedule.sampled_plans(PROFILE, (1, 2), NUM_WORKERS)
    tried = list(trial_schedule.sampling_trials(sampled, num_rounds))
    assert {one.phase for one in tried} == {Phase.SAMPLE}
    assert not any(one.plan.after_backward for one in tried)
    timed = [one.plan.fingerprint for one in tried if not (one.is_first or one.traced)]
    plans = {one.plan.fingerprint for one in tried}
    for begin in range(0, len(timed), len(plans)):
        assert set(timed[begin : begin + len(plans)]) == plans
    assert len(timed) == num_rounds * len(plans)
    assert sorted(one.plan.fingerprint for one in tried if one.traced) == sorted(plans)
    again = trial_schedule.sampled_plans(PROFILE, (1, 2), NUM_WORKERS)
    assert again == sampled  # on every rank


@pytest.mark.parametrize(
    ("steps", "rounds"), [(200, 3), (50, 3), (49, 2), (43, 1), (38, 1), (37, 0)]
)
def test_sampling_leaves_a_race_its_steps(steps: int, rounds: int) -> None:
    end = BudgetTracker(Budget(steps, 1e6), lambda: 0.0)
    assert trial_schedule.affordable_rounds(6, end) == rounds


def test_trials_end_with_the_budget() -> None:
    end = BudgetTracker(Budget(4, 1e6), lambda: 0.0)
    tried = trial_schedule.measuring_trials(SPECS, (1, 2, 4), NUM_WORKERS)
    run_trials = list(trial_schedule.run_trials(tried, Observations(), end))
    assert len(run_trials) == 4
    assert end.ended_early
