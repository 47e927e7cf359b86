"""Model tuner: LIBRA's Algorithm 2 on rank 0, then a race between its plan and other planners'."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tf_libra.autotune.candidates import MAX_CANDIDATES, gathered_by_groups, select_candidates
from tf_libra.autotune.fit_and_plan import fit_and_plan, is_trusted
from tf_libra.autotune.interleaved_trials import MAX_ROUNDS, race
from tf_libra.autotune.observations import Observations
from tf_libra.autotune.sampling_plans import tensor_specs, two_stream_plan
from tf_libra.autotune.trial_comparison import MIN_ROUNDS
from tf_libra.autotune.trial_schedule import (
    TIMED_ROUNDS,
    affordable_rounds,
    measuring_trials,
    run_trials,
    sampled_plans,
    sampling_trials,
    stream_trials,
)
from tf_libra.autotune.tuner import Tuner, TuningProblem, register
from tf_libra.autotune.tuning_result import TuningResult
from tf_libra.planning.strategy import Strategy
from tf_libra.specs.plan import Plan


@register
@dataclass(frozen=True)
class ModelTuner:
    """Tuner that plans by a fitted model, followed by a race if the strategy has one."""

    name: ClassVar[str] = "model"
    accepts: ClassVar[type[Any]] = Strategy

    def uses_warm_start(self, strategy: Strategy) -> bool:
        """Returns whether the strategy races: an earlier job's plan is a candidate."""
        return strategy.races

    def tune(self, problem: TuningProblem) -> Tuner:
        """Measures, samples, fits, plans, and races if the strategy does."""
        result = yield from measure_and_plan(problem)
        if not problem.strategy.races or result.cost_model is None:
            return result
        warm_start = problem.find_warm_start(result.bytes_per_second)
        candidates = select_candidates(
            result,
            problem.strategy,
            problem.runs_streams,
            problem.active_plan,
            warm_start,
            problem.wire_dtypes,
            problem.tries_gathers,
        )
        return (yield from race_candidates(result, candidates, problem))


def measure_and_plan(problem: TuningProblem) -> Tuner:
    """Measures, samples, fits and plans; a tuner without a race."""
    tensors, strategy, budget = problem.tensors, problem.strategy, problem.budget
    num_workers = problem.num_workers
    observations = Observations()
    threads = strategy.allowed_threads
    yield from run_trials(measuring_trials(tensors, threads, num_workers), observations, budget)
    profile = observations.profile(tensors)
    is_sampled = False
    if profile is not None:
        plans = sampled_plans(profile.profile, threads, num_workers)
        pairs = MAX_CANDIDATES if problem.overlaps_calls else int(problem.tries_gathers)
        rounds = TIMED_ROUNDS
        if strategy.races:
            rounds = affordable_rounds(len(plans), budget, MAX_CANDIDATES + pairs)
        is_sampled = rounds > 0
        if is_sampled:
            trials = sampling_trials(plans, rounds, problem.leaves_records)
            yield from run_trials(trials, observations, budget)
        if is_sampled and problem.runs_streams and strategy.num_streams > 1:
            plan = two_stream_plan(profile.profile, threads[0], num_workers)
            yield from run_trials(stream_trials(plan), observations, budget)
        # The steady-state speed is known only now; the order of the sampled plans' tensors stays.
        observations = observations.at_steady_speed()
        sized = tensor_specs(profile.profile)
        profile = observations.profile(sized, profile.profile.names)
    notes = observations.problem_notes()
    is_complete = is_sampled and not budget.ended_early
    if budget.ended_early or (profile is not None and not is_sampled):
        notes.append(budget.exhaustion_note())
    result = fit_and_plan(problem, observations, profile, notes)
    return replace(
        result,
        is_complete=is_complete and result.cost_model is not None,
        bytes_per_second=observations.bytes_per_second(num_workers),
        whole_updates=tuple(problem.whole_updates),
    )


def race_candidates(
    result: TuningResult,
    candidates: Sequence[tuple[Plan, float | None]],
    problem: TuningProblem,
    searched: Sequence[Plan] = (),
    max_rounds: int = MAX_ROUNDS,
) -> Tuner:
    """Races the candidates; a clearly faster plan replaces the active or the requested one.

    The active plan wins unless another is clearly faster. Without an active plan, that of the
    requested strategy does, except after a search, whose plans are all of that strategy.

    The first candidates and the active plan take part, as many as the budget affords `MIN_ROUNDS`
    rounds of. If it affords fewer than two plans, there is no race. A race that ended before
    `MIN_ROUNDS` rounds is not complete, so not cached, unless a trusted model decided.

    Args:
        result: result before the race.
        candidates: plans with their predicted steps, the most promising first.
        problem: tuning problem.
        searched: candidates that had steps in a search.
        max_rounds: most rounds of the race.
    """
    if problem.overlaps_calls:
        candidates = [
            (plan, None if seconds is None else result.predicted_step(gathered_by_groups(plan)))
            for plan, seconds in candidates
        ]
    known = {plan.fingerprint for plan in searched}
    affordable = _affordable(candidates, problem, known)
    active_plan = problem.active_plan
    requested: list[str] = []
    if active_plan is None and not searched:
        plans = [plan for plan, _ in affordable]
        own = [p for p in plans if p.strategy == problem.strategy.name and not p.gathers]
        # A plan with loss has to be clearly faster than one without.
        own.sort(key=lambda plan: plan.wire_dtype is not None)
        requested = [plan.fingerprint for plan in own]
    if len(affordable) == len(candidates) or len(affordable) > 1:
        found = yield from race(
            affordable,
            problem.budget,
            error=result.held_out_error,
            known=known,
            preferred=requested if active_plan is None else [active_plan.fingerprint],
            overlapping=[plan.fingerprint for plan, _ in affordable if problem.overlaps(plan)],
            guarded=[plan.fingerprint for plan, _ in affordable if plan.gathers],
            max_rounds=max_rounds,
        )
        # One round separates nothing: the planner's decision stands.
        if found.num_rounds >= MIN_ROUNDS or not requested:
            result = result.with_race(found)
        if found.num_rounds >= MIN_ROUNDS or not problem.budget.ended_early:
            return result
    is_reliable = result.cost_model is None or is_trusted(
        result.held_out_error, problem.max_model_error
    )
    return replace(result, is_complete=result.is_complete and is_reliable)


def _affordable(
    candidates: Sequence[tuple[Plan, float | None]], problem: TuningProblem, known: Collection[str]
) -> list[tuple[Plan, float | None]]:
    """Returns the candidates that the budget affords `MIN_ROUNDS` rounds of, at least one."""
    active = None if problem.active_plan is None else problem.active_plan.fingerprint
    remaining = list(candidates)
    while len(remaining) > 1:
        num_new = sum(plan.fingerprint not in known for plan, _ in remaining)
        steps_per_round = sum(1 + problem.overlaps(plan) for plan, _ in remaining)
        if problem.budget.affords(num_new, MIN_ROUNDS * steps_per_round):
            break
        # Lack of time must not replace the active plan.
        remaining.pop(-2 if remaining[-1][0].fingerprint == active else -1)
    return remaining
