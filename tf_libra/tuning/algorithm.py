"""LIBRA's Algorithm 2, as rank 0 runs it."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

from tf_libra import strategies
from tf_libra.model.profile import BackwardProfile
from tf_libra.tuning.conclusion import Conclusion
from tf_libra.tuning.end_of_tuning import Budget, EndOfTuning
from tf_libra.tuning.experiment import Experiment, Observation
from tf_libra.tuning.findings import Findings
from tf_libra.tuning.fit_and_plan import fit_and_plan
from tf_libra.tuning.phase import Phase
from tf_libra.tuning.plans_to_try import (
    TensorSpec,
    measuring_plans,
    one_group_plan,
    random_plans,
)

# Untraced steps under one all-reduce after backward: what a step takes without any plan.
BASELINE_STEPS = 5
# Traced steps per plan, after one that pays for the plan's instantiation.
MEASURED_STEPS = 3
SAMPLED_STEPS = 3
SAMPLED_PLANS = 12

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
) -> Tuner:
    """Yields experiments until the budget is spent or all is known; returns a plan.

    The generator is sent an `Observation` for every traced experiment, None for others.

    Args:
        tensors: in backward order as far as tracing knows it.
        strategy: what to plan with.
        num_workers: world size.
        budget: what may go by.
        max_model_error: beyond this median relative error on held-out steps the model is not
            trusted to choose threads, and MG-WFBP plans instead of LIBRA.
        clock: seconds.
        begins: called when FIT and PLAN begin, which are no steps.
        hops: that an all-reduce makes one after the other; None: those of a ring.
    """
    findings = Findings()
    threads = strategy.allowed_threads
    end = EndOfTuning(budget, clock)
    yield from _make(_measuring(tensors, threads, num_workers), findings, end)
    profile = findings.profile(tensors)
    if profile is not None:
        yield from _make(_sampling(profile.profile, threads, num_workers), findings, end)
    notes = [f"{problem} ({times} times)" for problem, times in findings.problems.items()]
    if end.came_early:
        notes.append(end.note())
    conclusion = fit_and_plan(
        findings, profile, tensors, strategy, num_workers, max_model_error, notes, begins, hops
    )
    is_complete = not end.came_early and conclusion.cost_model is not None
    return replace(conclusion, is_complete=is_complete)


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


def _measuring(
    tensors: Sequence[TensorSpec], threads: Sequence[int], num_workers: int
) -> Iterator[Experiment]:
    baseline = one_group_plan(tensors, threads[0], num_workers, strategies.SynEasgd.name)
    for _ in range(1 + BASELINE_STEPS):
        yield Experiment(Phase.MEASURE, baseline, traced=False)
    for plan in measuring_plans(tensors, threads, num_workers):
        for repetition in range(1 + MEASURED_STEPS):
            yield Experiment(Phase.MEASURE, plan, traced=repetition > 0)


def _sampling(
    profile: BackwardProfile, threads: Sequence[int], num_workers: int
) -> Iterator[Experiment]:
    # The first is the most telling: gradients are all-reduced as they are produced.
    for plan in random_plans(profile, threads, num_workers, SAMPLED_PLANS):
        for repetition in range(1 + SAMPLED_STEPS):
            yield Experiment(Phase.SAMPLE, plan, traced=repetition > 0)
