"""LIBRA's Algorithm 2, as rank 0 runs it, and a race between what it and other planners propose."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tf_libra.autotune.candidates import contenders
from tf_libra.autotune.fit_and_plan import fit_and_plan, is_trusted
from tf_libra.autotune.interleaved_trials import FEWEST_ROUNDS, race
from tf_libra.autotune.observations import Observations
from tf_libra.autotune.problem import TuningProblem
from tf_libra.autotune.sampling_plans import simultaneous_plan
from tf_libra.autotune.trial_schedule import (
    TIMED_ROUNDS,
    baseline,
    made,
    measuring,
    rounds_before_a_race,
    running_at_once,
    sampled_plans,
    sampling,
)
from tf_libra.autotune.tuner_registry import Tuner, register
from tf_libra.autotune.tuning_result import TuningResult
from tf_libra.planning.strategy import Strategy
from tf_libra.specs.plan import Plan

# Untraced steps under one all-reduce after backward: what a step takes without any plan. Where
# there is a race, that has more of them, in turns with other plans.
BASELINE_STEPS = 2
BASELINE_STEPS_BEFORE_A_RACE = 1


@register
@dataclass(frozen=True)
class ModelTuner:
    """Tuner that plans by a fitted model, and holds a race if the strategy has one."""

    name: ClassVar[str] = "model"
    takes: ClassVar[type[Any]] = Strategy

    def asks_for_a_start(self, strategy: Strategy) -> bool:
        """Returns whether the strategy races: the plan of an earlier job takes part in the race."""
        return strategy.races

    def tune(self, task: TuningProblem) -> Tuner:
        """Measures, samples, fits, plans, and races where the strategy does."""
        conclusion = yield from concluded(task)
        if not task.strategy.races or conclusion.cost_model is None:
            return conclusion
        start = task.start(conclusion.bytes_per_second)
        proposed = contenders(conclusion, task.strategy, task.runs_streams, task.in_force, start)
        return (yield from raced(conclusion, proposed, task))


def raced(
    conclusion: TuningResult,
    proposed: Sequence[tuple[Plan, float | None]],
    task: TuningProblem,
    tried: Sequence[Plan] = (),
) -> Tuner:
    """Returns the conclusion after a race; leaves the active plan only for a clearly faster one.

    The first plans and the active plan take part, as many as the budget affords two rounds of. If
    it affords them for no two plans, or ends before the first round, there is no race. A race that
    ended before the second round is cached for no other job, unless a trusted model decided.

    Args:
        conclusion: the conclusion before the race.
        proposed: the plans, with their predicted steps.
        task: the tuning problem.
        tried: the proposed plans that have had steps in a search.
    """
    known = {plan.fingerprint for plan in tried}
    field = _field(proposed, task, known)
    if len(field) == len(proposed) or len(field) > 1:
        result = yield from race(field, task.end, error=conclusion.held_out_error, known=known)
        found = result if task.in_force is None else result.keeping(task.in_force)
        conclusion = conclusion.after(found)
        if result.num_rounds >= FEWEST_ROUNDS or not task.end.came_early:
            return conclusion
    # What a step each has decided at most, and no model that is trusted, is for this job alone.
    is_trustworthy = is_trusted(conclusion.held_out_error, task.max_model_error)
    is_complete = conclusion.is_complete and (conclusion.cost_model is None or is_trustworthy)
    return replace(conclusion, is_complete=is_complete)


def _field(
    proposed: Sequence[tuple[Plan, float | None]], task: TuningProblem, known: Collection[str]
) -> list[tuple[Plan, float | None]]:
    """Returns the proposed plans that the budget affords two rounds of, at least one plan."""
    in_force = None if task.in_force is None else task.in_force.fingerprint
    field = list(proposed)
    while len(field) > 1:
        first = sum(plan.fingerprint not in known for plan, _ in field)
        if task.end.affords(first, FEWEST_ROUNDS * len(field)):
            break
        # The active plan is not to be left for want of time.
        field.pop(-2 if field[-1][0].fingerprint == in_force else -1)
    return field


def concluded(task: TuningProblem) -> Tuner:
    """All of it but the race."""
    tensors, strategy, num_workers, end = task.tensors, task.strategy, task.num_workers, task.end
    findings = Observations()
    threads = strategy.allowed_threads
    baseline_steps = BASELINE_STEPS_BEFORE_A_RACE if strategy.races else BASELINE_STEPS
    yield from made(baseline(tensors, threads[0], num_workers, baseline_steps), findings, end)
    yield from made(measuring(tensors, threads, num_workers), findings, end)
    profile = findings.profile(tensors)
    is_sampled = False
    if profile is not None:
        plans = sampled_plans(profile.profile, threads, num_workers)
        rounds = rounds_before_a_race(len(plans), end) if strategy.races else TIMED_ROUNDS
        is_sampled = rounds > 0
        if is_sampled:
            yield from made(sampling(plans, rounds), findings, end)
        if is_sampled and task.runs_streams and strategy.num_streams > 1:
            plan = simultaneous_plan(profile.profile, threads[0], num_workers)
            yield from made(running_at_once(plan), findings, end)
        # Only now it is known what is usual; the plans that were sampled keep their tensors' order.
        findings = findings.at_usual_pace()
        profile = findings.profile(tensors, profile.profile.names)
    notes = findings.notes()
    is_complete = is_sampled and not end.came_early
    if end.came_early or (profile is not None and not is_sampled):
        notes.append(end.note())
    conclusion = fit_and_plan(task, findings, profile, notes)
    return replace(
        conclusion,
        is_complete=is_complete and conclusion.cost_model is not None,
        bytes_per_second=findings.bytes_per_second(num_workers),
    )
