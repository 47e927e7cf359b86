"""Choice and order of trials before a fit."""

from collections import Counter

import pytest

from tests.autotune.machine import NUM_WORKERS, PROFILE
from tf_libra.autotune import Phase, TrialResult, trial_schedule
from tf_libra.autotune.budget import Budget, BudgetTracker
from tf_libra.autotune.observations import Observations
from tf_libra.autotune.sampling_plans import one_group_plan, tensor_specs

SPECS = tensor_specs(PROFILE)


@pytest.mark.parametrize(
    "tried",
    [
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
    for trial in tried:
        assert trial.is_first == (trial.plan.fingerprint not in seen)
        assert not (trial.is_first and trial.traced)
        seen.add(trial.plan.fingerprint)
    assert seen


def test_trial_without_a_result_is_repeated_but_for_the_first_of_a_plan() -> None:
    tried = list(trial_schedule.measuring_trials(SPECS, (1, 2, 4), NUM_WORKERS))[:2]
    budget = BudgetTracker(Budget(max_steps=10))
    running = trial_schedule.run_trials(iter(tried), Observations(), budget)
    assert next(running) is tried[0]
    assert running.send(None) is running.send(None) is tried[1]
    with pytest.raises(StopIteration):
        running.send(TrialResult(None, (), "the clock was set during the step"))


def test_measuring_communicates_after_backward() -> None:
    tried = list(trial_schedule.measuring_trials(SPECS, (1, 2, 4), NUM_WORKERS))
    assert {trial.phase for trial in tried} == {Phase.MEASURE}
    assert all(trial.plan.after_backward for trial in tried)
    assert {g.num_threads for trial in tried for g in trial.plan.groups} == {1, 2, 4}


@pytest.mark.parametrize("threads", [(1,), (1, 2), (1, 2, 4), (1, 2, 3, 4, 6, 8)])
def test_profile_is_the_median_of_three_steps_or_more(threads: tuple[int, ...]) -> None:
    tried = list(trial_schedule.measuring_trials(SPECS, threads, NUM_WORKERS))
    traced = Counter(trial.plan.fingerprint for trial in tried if trial.traced)
    assert traced.keys() == {trial.plan.fingerprint for trial in tried}
    assert traced.total() == max(trial_schedule.MEASURED_STEPS, len(traced))


@pytest.mark.parametrize(
    ("threads", "num_streams", "most"), [((1,), 1, 21), ((1, 2, 4), 1, 22), ((1, 2, 4), 2, 25)]
)
def test_measuring_takes_at_most_25_steps(
    threads: tuple[int, ...], num_streams: int, most: int
) -> None:
    tried = [
        *trial_schedule.measuring_trials(SPECS, threads, NUM_WORKERS),
        *trial_schedule.sampling_trials(
            trial_schedule.sampled_plans(PROFILE, threads, NUM_WORKERS)
        ),
    ]
    if num_streams > 1:
        plan = one_group_plan(SPECS, 1, NUM_WORKERS, "syneasgd")
        tried += trial_schedule.stream_trials(plan)
    assert len(tried) == most


def test_backend_whose_records_need_a_trace_has_every_sampled_step_traced() -> None:
    sampled = trial_schedule.sampled_plans(PROFILE, (1, 2), NUM_WORKERS)
    tried = list(trial_schedule.sampling_trials(sampled, leaves_records=False))
    assert all(trial.traced != trial.is_first for trial in tried)
    traced = Counter(trial.plan.fingerprint for trial in tried if trial.traced)
    assert traced == {plan.fingerprint: trial_schedule.TIMED_ROUNDS for plan in sampled}


@pytest.mark.parametrize("num_rounds", [1, trial_schedule.TIMED_ROUNDS])
def test_sampled_plans_take_turns(num_rounds: int) -> None:
    sampled = trial_schedule.sampled_plans(PROFILE, (1, 2), NUM_WORKERS)
    tried = list(trial_schedule.sampling_trials(sampled, num_rounds))
    assert {trial.phase for trial in tried} == {Phase.SAMPLE}
    assert not any(trial.plan.after_backward for trial in tried)
    timed = [trial.plan.fingerprint for trial in tried if not (trial.is_first or trial.traced)]
    plans = {trial.plan.fingerprint for trial in tried}
    for begin in range(0, len(timed), len(plans)):
        assert set(timed[begin : begin + len(plans)]) == plans
    assert len(timed) == num_rounds * len(plans)
    traced = [trial.plan.fingerprint for trial in tried if trial.traced]
    assert len(set(traced)) == len(traced) <= trial_schedule.TRACED_SAMPLES
    again = trial_schedule.sampled_plans(PROFILE, (1, 2), NUM_WORKERS)
    assert again == sampled  # on every rank


@pytest.mark.parametrize(("steps", "rounds"), [(200, 2), (37, 2), (36, 1), (32, 1), (31, 0)])
def test_sampling_leaves_a_race_its_steps(steps: int, rounds: int) -> None:
    end = BudgetTracker(Budget(steps, 1e6), lambda: 0.0)
    assert trial_schedule.affordable_rounds(5, end) == rounds


def test_trials_end_with_the_budget() -> None:
    end = BudgetTracker(Budget(4, 1e6), lambda: 0.0)
    tried = trial_schedule.measuring_trials(SPECS, (1, 2, 4), NUM_WORKERS)
    run_trials = list(trial_schedule.run_trials(tried, Observations(), end))
    assert len(run_trials) == 4
    assert end.ended_early
