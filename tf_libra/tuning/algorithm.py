"""LIBRA's Algorithm 2, as rank 0 runs it, and a race between what it and other planners propose."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tf_libra import strategies
from tf_libra.model.plan import Plan
from tf_libra.model.profile import BackwardProfile
from tf_libra.tuning.conclusion import Conclusion
from tf_libra.tuning.contenders import contenders
from tf_libra.tuning.end_of_tuning import Budget, EndOfTuning
from tf_libra.tuning.experiment import Experiment, Observation
from tf_libra.tuning.findings import Findings
from tf_libra.tuning.fit_and_plan import fit_and_plan
from tf_libra.tuning.phase import Phase
from tf_libra.tuning.plans_to_try import (
    TensorSpec,
    measuring_plans,
    one_by_one_plan,
    one_group_plan,
    random_plans,
    simultaneous_plan,
    specs_of,
)
from tf_libra.tuning.race import race

# Untraced steps under one all-reduce after backward: what a step takes without any plan. Where
# there is a race, that has more of them, in turns with other plans.
BASELINE_STEPS = 2
BASELINE_STEPS_BEFORE_A_RACE = 1
# Traced steps per plan, after one that pays for the plan's instantiation: of the fewest and the
# most threads, and of the thread counts between.
MEASURED_STEPS = 2
MEASURED_STEPS_BETWEEN = 1
SAMPLED_PLANS = 5
# Rounds of steps that nobody traces, one of each sampled plan.
TIMED_ROUNDS = 3

Tuner = Generator[Experiment, Observation | None, Conclusion]


def tune(
    tensors: Sequence[TensorSpec],
    strategy: strategies.Strategy,
    num_workers: int,
    budget: Budget,
    max_model_error: float = 0.25,
    clock: Callable[[], float] = time.monotonic,
    begins: Callable[[Phase], None] = lambda phase: None,
    hops: int | None = None,
    runs_streams: bool = False,
    in_force: Plan | None = None,
) -> Tuner:
    """Yields experiments until the budget is spent or all is known; returns a plan.

    The generator is sent what was observed of each step.

    Args:
        tensors: in backward order as far as tracing knows it.
        strategy: what to plan with.
        num_workers: world size.
        budget: what may go by.
        max_model_error: beyond this median relative error on held-out steps the model is not
            trusted to choose threads.
        clock: seconds.
        begins: called when FIT and PLAN begin, which are no steps.
        hops: that an all-reduce makes one after the other; None: those of a ring.
        runs_streams: whether the engine runs all-reduces of several streams at once.
        in_force: a plan that is left only for one that is clearly faster in a race.
    """
    findings = Findings()
    threads = strategy.allowed_threads
    end = EndOfTuning(budget, clock)
    baseline_steps = BASELINE_STEPS_BEFORE_A_RACE if strategy.races else BASELINE_STEPS
    yield from _make(_baseline(tensors, threads[0], num_workers, baseline_steps), findings, end)
    yield from _make(_measuring(tensors, threads, num_workers), findings, end)
    profile = findings.profile(tensors)
    if profile is not None:
        yield from _make(_sampling(profile.profile, threads, num_workers), findings, end)
        if runs_streams and strategy.num_streams > 1:
            plan = simultaneous_plan(profile.profile, threads[0], num_workers)
            yield from _make(_running_at_once(plan), findings, end)
    notes = [f"{problem} ({times} times)" for problem, times in findings.problems.items()]
    if end.came_early:
        notes.append(end.note())
    conclusion = fit_and_plan(
        findings,
        profile,
        tensors,
        strategy,
        num_workers,
        max_model_error,
        notes,
        begins,
        hops,
        runs_streams,
    )
    is_complete = not end.came_early and conclusion.cost_model is not None
    conclusion = replace(conclusion, is_complete=is_complete)
    if not strategy.races or conclusion.cost_model is None:
        return conclusion
    result = yield from race(contenders(conclusion, strategy, runs_streams, in_force), end)
    return conclusion.after(result if in_force is None else result.keeping(in_force))


def _make(
    experiments: Iterator[Experiment], findings: Findings, end: EndOfTuning
) -> Generator[Experiment, Observation | None, None]:
    """Yields experiments, and notes what they show, until the end has come."""
    for experiment in experiments:
        if end.has_come():
            return
        observation = yield experiment
        if observation is not None:
            findings.note(experiment, observation)


def _baseline(
    tensors: Sequence[TensorSpec], num_threads: int, num_workers: int, num_steps: int
) -> Iterator[Experiment]:
    plan = one_group_plan(tensors, num_threads, num_workers, strategies.SynEasgd.name)
    for repetition in range(1 + num_steps):
        yield Experiment(Phase.MEASURE, plan, traced=False, is_first=repetition == 0)


def _measuring(
    tensors: Sequence[TensorSpec], threads: Sequence[int], num_workers: int
) -> Iterator[Experiment]:
    plans = measuring_plans(tensors, threads, num_workers)
    for plan in plans:
        is_between = plan is not plans[0] and plan is not plans[-1]
        for repetition in range(1 + (MEASURED_STEPS_BETWEEN if is_between else MEASURED_STEPS)):
            first = repetition == 0
            yield Experiment(Phase.MEASURE, plan, traced=not first, is_first=first)


def _sampling(
    profile: BackwardProfile, threads: Sequence[int], num_workers: int
) -> Iterator[Experiment]:
    """Plans in turns: what disturbs the machine for a while disturbs all of them."""
    plans = random_plans(profile, threads, num_workers, SAMPLED_PLANS)
    plans.append(one_by_one_plan(specs_of(profile), threads[0], num_workers))
    plans = list({plan.fingerprint: plan for plan in plans}.values())
    for plan in plans:
        yield from _first_steps(plan)
    order = np.random.default_rng(0)
    for _ in range(TIMED_ROUNDS):
        for index in order.permutation(len(plans)):
            yield Experiment(Phase.SAMPLE, plans[index], traced=False)


def _running_at_once(plan: Plan) -> Iterator[Experiment]:
    for repetition in range(1 + TIMED_ROUNDS):
        yield Experiment(Phase.SAMPLE, plan, traced=False, is_first=repetition == 0)


def _first_steps(plan: Plan) -> Iterator[Experiment]:
    yield Experiment(Phase.SAMPLE, plan, traced=False, is_first=True)
    yield Experiment(Phase.SAMPLE, plan, traced=True)
