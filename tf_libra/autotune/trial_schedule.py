"""Trial schedule of LIBRA's Algorithm 2: the trials before a model is fitted, step by step."""

from collections.abc import Generator, Iterator, Sequence

import numpy as np

from tf_libra.autotune.budget import BudgetTracker
from tf_libra.autotune.candidates import MAX_CANDIDATES
from tf_libra.autotune.interleaved_trials import ROUNDS_BEFORE_ELIMINATION
from tf_libra.autotune.observations import Observations
from tf_libra.autotune.sampling_plans import (
    TensorSpec,
    measuring_plans,
    one_by_one_plan,
    one_group_plan,
    random_plans,
    tensor_specs,
)
from tf_libra.autotune.trial import Phase, Trial, TrialResult
from tf_libra.planning import data_parallel as strategies
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

# Traced steps per measuring plan, after the first step: for the fewest and the most threads, and
# for the thread counts between them.
MEASURED_STEPS = 2
MEASURED_STEPS_BETWEEN = 1
SAMPLED_PLANS = 5
# Rounds of untraced steps, one step of each sampled plan per round.
TIMED_ROUNDS = 3


def run_trials(
    trials: Iterator[Trial], observations: Observations, budget: BudgetTracker
) -> Generator[Trial, TrialResult | None, None]:
    """Yields trials until the budget is spent; records the results that are sent."""
    for trial in trials:
        if not budget.take_step(trial.is_first):
            return
        result = yield trial
        if result is not None:
            observations.record(trial, result)


def baseline_trials(
    tensors: Sequence[TensorSpec], num_threads: int, num_workers: int, num_steps: int
) -> Iterator[Trial]:
    """Yields untraced trials of one all-reduce after backward."""
    plan = one_group_plan(tensors, num_threads, num_workers, strategies.SynEasgd.name)
    for repetition in range(1 + num_steps):
        yield Trial(Phase.MEASURE, plan, traced=False, is_first=repetition == 0)


def measuring_trials(
    tensors: Sequence[TensorSpec], threads: Sequence[int], num_workers: int
) -> Iterator[Trial]:
    """Yields traced trials that communicate after backward, free of contention."""
    plans = measuring_plans(tensors, threads, num_workers)
    for plan in plans:
        is_between = plan is not plans[0] and plan is not plans[-1]
        for repetition in range(1 + (MEASURED_STEPS_BETWEEN if is_between else MEASURED_STEPS)):
            first = repetition == 0
            yield Trial(Phase.MEASURE, plan, traced=not first, is_first=first)


def sampled_plans(profile: BackwardProfile, threads: Sequence[int], num_workers: int) -> list[Plan]:
    """Returns different plans to sample: random ones, and one of many small all-reduces."""
    plans = random_plans(profile, threads, num_workers, SAMPLED_PLANS)
    plans.append(one_by_one_plan(tensor_specs(profile), threads[0], num_workers))
    return list({plan.fingerprint: plan for plan in plans}.values())


def sampling_trials(plans: Sequence[Plan], num_rounds: int = TIMED_ROUNDS) -> Iterator[Trial]:
    """Yields interleaved trials, so that disturbances of the machine affect all plans.

    After its first step, every plan has one traced step and `num_rounds` untraced ones.
    """
    for plan in plans:
        yield Trial(Phase.SAMPLE, plan, traced=False, is_first=True)
    order = np.random.default_rng(0)
    for number in range(num_rounds):
        for index in order.permutation(len(plans)):
            yield Trial(Phase.SAMPLE, plans[index], traced=False)
        for plan in plans[number::num_rounds]:
            yield Trial(Phase.SAMPLE, plan, traced=True)


def affordable_rounds(num_plans: int, budget: BudgetTracker) -> int:
    """Returns the sampling rounds that leave a race enough rounds for its first elimination.

    The result is at most `TIMED_ROUNDS`, and 0 if the budget suffices for a race only.
    """
    for rounds in range(TIMED_ROUNDS, 0, -1):
        others = num_plans * (rounds + 1) + MAX_CANDIDATES * ROUNDS_BEFORE_ELIMINATION
        if budget.affords(num_plans + MAX_CANDIDATES, others):
            return rounds
    return 0


def stream_trials(plan: Plan) -> Iterator[Trial]:
    """Yields untraced trials of a plan with several streams."""
    for repetition in range(1 + TIMED_ROUNDS):
        yield Trial(Phase.SAMPLE, plan, traced=False, is_first=repetition == 0)
