"""LIBRA's Algorithm 2, as rank 0 runs it, and a race between what it and other planners propose."""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

from tf_libra import strategies
from tf_libra.model.plan import Plan
from tf_libra.tuning.conclusion import Conclusion
from tf_libra.tuning.contenders import contenders
from tf_libra.tuning.end_of_tuning import Budget, EndOfTuning
from tf_libra.tuning.experiment import Experiment, Observation
from tf_libra.tuning.experiments import baseline, made, measuring, running_at_once, sampling
from tf_libra.tuning.findings import Findings
from tf_libra.tuning.fit_and_plan import fit_and_plan
from tf_libra.tuning.phase import Phase
from tf_libra.tuning.plans_to_try import TensorSpec, simultaneous_plan
from tf_libra.tuning.race import race
from tf_libra.tuning.similar import Start

# Untraced steps under one all-reduce after backward: what a step takes without any plan. Where
# there is a race, that has more of them, in turns with other plans.
BASELINE_STEPS = 2
BASELINE_STEPS_BEFORE_A_RACE = 1

Tuner = Generator[Experiment, Observation | None, Conclusion]


def tune_by_model(
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
    start: Start | None = None,
) -> Tuner:
    """Measures, samples, fits, plans, and races where the strategy does; see `tuners.tune`."""
    end = EndOfTuning(budget, clock)
    conclusion = yield from concluded(
        tensors, strategy, num_workers, end, max_model_error, begins, hops, runs_streams
    )
    if not strategy.races or conclusion.cost_model is None:
        return conclusion
    result = yield from race(contenders(conclusion, strategy, runs_streams, in_force, start), end)
    return conclusion.after(result if in_force is None else result.keeping(in_force))


def concluded(
    tensors: Sequence[TensorSpec],
    strategy: strategies.Strategy,
    num_workers: int,
    end: EndOfTuning,
    max_model_error: float,
    begins: Callable[[Phase], None],
    hops: int | None,
    runs_streams: bool,
) -> Tuner:
    """All of it but the race.

    Args:
        tensors: in backward order as far as tracing knows it.
        strategy: what to plan with.
        num_workers: world size.
        end: asked before every step.
        max_model_error: beyond this median relative error on held-out steps the model is not
            trusted to choose threads.
        begins: called when FIT and PLAN begin, which are no steps.
        hops: that an all-reduce makes one after the other; None: those of a ring.
        runs_streams: whether the engine runs all-reduces of several streams at once.
    """
    findings = Findings()
    threads = strategy.allowed_threads
    baseline_steps = BASELINE_STEPS_BEFORE_A_RACE if strategy.races else BASELINE_STEPS
    yield from made(baseline(tensors, threads[0], num_workers, baseline_steps), findings, end)
    yield from made(measuring(tensors, threads, num_workers), findings, end)
    profile = findings.profile(tensors)
    if profile is not None:
        yield from made(sampling(profile.profile, threads, num_workers), findings, end)
        if runs_streams and strategy.num_streams > 1:
            plan = simultaneous_plan(profile.profile, threads[0], num_workers)
            yield from made(running_at_once(plan), findings, end)
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
    return replace(conclusion, is_complete=is_complete)
