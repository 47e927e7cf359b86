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
    random_plans,
    tensor_specs,
)
from tf_libra.autotune.trial import Phase, Trial, TrialResult
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

# Fewest traced steps that communicate after backward: a profile is their median.
MEASURED_STEPS = 3
# Sampled plans, the rounds of untraced steps in which they take turns, and traced steps.
SAMPLED_PLANS = 5
TIMED_ROUNDS = 2
TRACED_SAMPLES = 2


def run_trials(
    trials: Iterator[Trial], observations: Observations, budget: BudgetTracker
) -> Generator[Trial, TrialResult | None, None]:
    """Yields trials until the budget is spent; records the results that are sent.

    A trial without a result is repeated, unless it is the first of its plan: the step has failed,
    as at the end of a data set, or the one before it, so that this one has made the plan's graph.
    """
    for trial in trials:
        result = None
        while result is None:
            if not budget.take_step(trial.is_first):
                return
            result = yield trial
            if trial.is_first:
                break
        if result is not None:
            observations.record(trial, result)


def measuring_trials(
    tensors: Sequence[TensorSpec], threads: Sequence[int], num_workers: int
) -> Iterator[Trial]:
    """Yields traced trials that communicate after backward, free of contention."""
    plans = measuring_plans(tensors, threads, num_workers)
    for index, plan in enumerate(plans):
        yield Trial(Phase.MEASURE, plan, traced=False, is_first=True)
        for _ in range(max(len(range(index, MEASURED_STEPS, len(plans))), 1)):
            yield Trial(Phase.MEASURE, plan, traced=True)


def sampled_plans(profile: BackwardProfile, threads: Sequence[int], num_workers: int) -> list[Plan]:
    """Returns different plans to sample: random ones, and one of many small all-reduces."""
    plans = random_plans(profile, threads, num_workers, SAMPLED_PLANS - 1)
    plans.append(one_by_one_plan(tensor_specs(profile), threads[0], num_workers))
    return list({plan.fingerprint: plan for plan in plans}.values())


def sampling_trials(
    plans: Sequence[Plan], num_rounds: int = TIMED_ROUNDS, leaves_records: bool = True
) -> Iterator[Trial]:
    """Yields interleaved trials, so that disturbances of the machine affect all plans.

    After the first steps, each round has a step of every plan. These steps are untraced, and the
    plans with the most thread counts have one traced step each; if only a trace shows all-reduces,
    every step is traced.

    Args:
        plans: sampled plans.
        num_rounds: number of rounds, at least 1.
        leaves_records: whether untraced steps show their all-reduces.
    """
    for plan in plans:
        yield Trial(Phase.SAMPLE, plan, traced=False, is_first=True)
    order = np.random.default_rng(0)
    by_threads = sorted(plans, key=lambda plan: -len({group.num_threads for group in plan.groups}))
    traced = by_threads[:TRACED_SAMPLES] if leaves_records else []
    for number in range(num_rounds):
        for index in order.permutation(len(plans)):
            yield Trial(Phase.SAMPLE, plans[index], traced=not leaves_records)
        for plan in traced[number::num_rounds]:
            yield Trial(Phase.SAMPLE, plan, traced=True)


def affordable_rounds(
    num_plans: int, budget: BudgetTracker, steps_per_round: int = MAX_CANDIDATES
) -> int:
    """Returns the sampling rounds that leave a race enough rounds for its first elimination.

    The result is at most `TIMED_ROUNDS`, and 0 if the budget suffices for a race only.

    Args:
        num_plans: number of sampled plans.
        budget: tracker that grants every step.
        steps_per_round: steps in a round of the race.
    """
    for rounds in range(TIMED_ROUNDS, 0, -1):
        others = num_plans * rounds + TRACED_SAMPLES + steps_per_round * ROUNDS_BEFORE_ELIMINATION
        if budget.affords(num_plans + MAX_CANDIDATES, others):
            return rounds
    return 0


def stream_trials(plan: Plan) -> Iterator[Trial]:
    """Yields untraced trials of a plan with several streams."""
    for repetition in range(1 + TIMED_ROUNDS):
        yield Trial(Phase.SAMPLE, plan, traced=False, is_first=repetition == 0)
