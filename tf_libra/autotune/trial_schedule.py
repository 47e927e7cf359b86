"""The experiments of Algorithm 2: what is tried before anything is known, step by step."""

from collections.abc import Generator, Iterator, Sequence

import numpy as np

from tf_libra import strategies
from tf_libra.autotune.budget import BudgetTracker
from tf_libra.autotune.candidates import MAX_CONTENDERS
from tf_libra.autotune.interleaved_trials import LEAST_ROUNDS
from tf_libra.autotune.observations import Observations
from tf_libra.autotune.phase import Phase
from tf_libra.autotune.sampling_plans import (
    TensorSpec,
    measuring_plans,
    one_by_one_plan,
    one_group_plan,
    random_plans,
    specs_of,
)
from tf_libra.autotune.trial import Trial, TrialResult
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

# Traced steps per plan, after one that pays for the plan's instantiation: of the fewest and the
# most threads, and of the thread counts between.
MEASURED_STEPS = 2
MEASURED_STEPS_BETWEEN = 1
SAMPLED_PLANS = 5
# Rounds of untraced steps, one of each sampled plan.
TIMED_ROUNDS = 3


def made(
    experiments: Iterator[Trial], findings: Observations, end: BudgetTracker
) -> Generator[Trial, TrialResult | None, None]:
    """Yields experiments, and notes what they show, until the end has come."""
    for experiment in experiments:
        if end.is_exhausted(experiment.is_first):
            return
        observation = yield experiment
        if observation is not None:
            findings.note(experiment, observation)


def baseline(
    tensors: Sequence[TensorSpec], num_threads: int, num_workers: int, num_steps: int
) -> Iterator[Trial]:
    """Untraced steps under one all-reduce of everything."""
    plan = one_group_plan(tensors, num_threads, num_workers, strategies.SynEasgd.name)
    for repetition in range(1 + num_steps):
        yield Trial(Phase.MEASURE, plan, traced=False, is_first=repetition == 0)


def measuring(
    tensors: Sequence[TensorSpec], threads: Sequence[int], num_workers: int
) -> Iterator[Trial]:
    """Steps that communicate after backward, for the profile and for what nothing overlaps."""
    plans = measuring_plans(tensors, threads, num_workers)
    for plan in plans:
        is_between = plan is not plans[0] and plan is not plans[-1]
        for repetition in range(1 + (MEASURED_STEPS_BETWEEN if is_between else MEASURED_STEPS)):
            first = repetition == 0
            yield Trial(Phase.MEASURE, plan, traced=not first, is_first=first)


def sampled_plans(profile: BackwardProfile, threads: Sequence[int], num_workers: int) -> list[Plan]:
    """Random ones, and one of many small all-reduces."""
    plans = random_plans(profile, threads, num_workers, SAMPLED_PLANS)
    plans.append(one_by_one_plan(specs_of(profile), threads[0], num_workers))
    return list({plan.fingerprint: plan for plan in plans}.values())


def sampling(plans: Sequence[Plan], num_rounds: int = TIMED_ROUNDS) -> Iterator[Trial]:
    """Plans in turns: what disturbs the machine for a while disturbs all of them.

    After a step that pays for its instantiation every plan has one traced step, and `num_rounds`
    untraced ones.
    """
    for plan in plans:
        yield Trial(Phase.SAMPLE, plan, traced=False, is_first=True)
    order = np.random.default_rng(0)
    for number in range(num_rounds):
        for index in order.permutation(len(plans)):
            yield Trial(Phase.SAMPLE, plans[index], traced=False)
        for plan in plans[number::num_rounds]:
            yield Trial(Phase.SAMPLE, plan, traced=True)


def rounds_before_a_race(num_plans: int, end: BudgetTracker) -> int:
    """Returns the sampling rounds that leave a race the rounds after which it first decides.

    The result is at most `TIMED_ROUNDS`, and 0 if the budget leaves time for a race alone.
    """
    for rounds in range(TIMED_ROUNDS, 0, -1):
        others = num_plans * (rounds + 1) + MAX_CONTENDERS * LEAST_ROUNDS
        if end.affords(num_plans + MAX_CONTENDERS, others):
            return rounds
    return 0


def running_at_once(plan: Plan) -> Iterator[Trial]:
    """Steps under a plan of several streams."""
    for repetition in range(1 + TIMED_ROUNDS):
        yield Trial(Phase.SAMPLE, plan, traced=False, is_first=repetition == 0)
