"""Portfolio tuner of `auto`: a race of every strategy's plan and the best searched settings."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, cast

from tf_libra.autotune.candidates import plan_with_gathers, step_seconds, warm_start_plan
from tf_libra.autotune.concurrent_all_reduces import (
    adapt_to_engine,
    max_lanes,
    resolve_contention,
    with_contention,
    with_measured_contention,
)
from tf_libra.autotune.fit_and_plan import is_trusted
from tf_libra.autotune.interleaved_trials import MAX_ROUNDS, ROUNDS_BEFORE_ELIMINATION
from tf_libra.autotune.model_tuner import measure_and_plan, race_candidates
from tf_libra.autotune.search.driver import search
from tf_libra.autotune.search.space import SearchableStrategy
from tf_libra.autotune.search_tuner import SearchTuner, best_plans
from tf_libra.autotune.tuner import Tuner, TuningProblem, register
from tf_libra.autotune.tuning_result import TuningResult
from tf_libra.internal.registry import missing_members
from tf_libra.planning import data_parallel as strategies
from tf_libra.planning import make_plan
from tf_libra.planning.strategy import Strategy
from tf_libra.specs.plan import Plan

# Share of the steps after the fit; the race takes the rest.
_SEARCH_SHARE = 0.4
_FINALISTS = 3
# Ratio of a predicted step to one of one worker from which on few plans race, in few rounds.
_FAR_SLOWER = 1.5
_FEW_PLANS = 3


class PortfolioStrategy(Strategy, Protocol):
    """Strategy that plans by a portfolio of other strategies."""

    def others(self) -> Mapping[str, Strategy]:
        """Returns the other strategies, by name."""
        ...


@register
@dataclass(frozen=True)
class PortfolioTuner:
    """Tuner that races the plans and the best searched settings of all other strategies."""

    name: ClassVar[str] = "all"
    accepts: ClassVar[type[Any]] = PortfolioStrategy

    def uses_warm_start(self, strategy: Strategy) -> bool:
        """Returns True: the race and the searches use the result of a similar job."""
        return True

    def tune(self, problem: TuningProblem) -> Tuner:
        """Measures, samples, fits, plans by all strategies, searches, races."""
        return _tune(problem, cast(PortfolioStrategy, problem.strategy))


def _tune(problem: TuningProblem, strategy: PortfolioStrategy) -> Tuner:
    result = yield from measure_and_plan(problem)
    if result.profile is None or result.cost_model is None:
        return result
    notes = list(result.notes)
    plans = _plans(result, strategy, problem)
    is_first = problem.active_plan is None
    is_short = is_first and problem.has_alternatives and _are_far_slower(plans, result)
    steps = 0 if is_short else round(_SEARCH_SHARE * problem.budget.steps_left)
    warm_start = problem.find_warm_start(result.bytes_per_second)
    settings = () if warm_start is None else warm_start.settings
    searched: list[Plan] = []
    gamma = resolve_contention(strategy, result.contention)
    searches = []
    searchable = _searchable(strategy)
    for other in searchable:
        found = yield from search(
            result.profile,
            other,
            problem.num_workers,
            problem.budget,
            steps // len(searchable),
            notes,
            problem.runs_streams,
            settings,
            overlaps=problem.overlaps,
        )
        if found.best is None:
            continue
        # Measured settings replace the setting that the model predicts to be the best.
        plans = [plan for plan in plans if plan.strategy != other.name]
        notes.append(found.describe())
        best = best_plans(found, result.profile, other, problem, _FINALISTS)
        plans += [with_contention(plan, gamma) for plan in best]
        searched += best
        searches.append(found)
    fastest = min(searches, key=lambda each: min(each.seconds.values()), default=None)
    result = replace(result, notes=tuple(notes), search=fastest)
    warm_plan = warm_start_plan(result, strategy, problem.runs_streams, warm_start)
    if problem.active_plan is not None:  # its gamma and prediction are those of an earlier model
        plans.append(result.with_prediction(with_contention(problem.active_plan, gamma)))
    plans += [] if warm_plan is None else [warm_plan]
    if problem.tries_gathers:
        gathering = plan_with_gathers(result, strategies.Libra(threads=strategy.allowed_threads))
        plans += [] if gathering is None else [gathering]
    unique = {plan.fingerprint: plan for plan in reversed(plans)}
    trusted = is_trusted(result.held_out_error, problem.max_model_error)

    def priority(plan: Plan) -> tuple[bool, float, str]:
        """Returns a sort key: the predicted step; an untrusted model puts the safe plan first."""
        is_safe = plan.fingerprint == result.plan.fingerprint
        return not (trusted or is_safe), step_seconds(result, plan), plan.fingerprint

    ordered = sorted(unique.values(), key=priority)
    if is_short:
        notes.append("one worker is predicted to be far faster, so few plans were tried")
        result = replace(result, notes=tuple(notes))
        ordered = ordered[:_FEW_PLANS]
    candidates = [(plan, result.predicted_step(plan)) for plan in ordered]
    max_rounds = ROUNDS_BEFORE_ELIMINATION if is_short else MAX_ROUNDS
    raced = yield from race_candidates(result, candidates, problem, searched, max_rounds)
    if raced.race is None and len(candidates) > 1 and trusted:
        note = "the budget ended before any two plans were compared: the model decided"
        return replace(raced, notes=(*raced.notes, note))
    return raced


def _are_far_slower(plans: Sequence[Plan], result: TuningResult) -> bool:
    """Returns whether one worker is faster by far than all plans, by a trusted model."""
    if result.evidence.caveat:
        return False
    fastest = min(step_seconds(result, plan) for plan in plans)
    compared = result.compare_with_one_worker(fastest) if fastest < math.inf else None
    return compared is not None and compared.speedup * _FAR_SLOWER < 1


def _searchable(strategy: PortfolioStrategy) -> list[SearchableStrategy]:
    """Returns the other strategies that a search tunes when the user selects them alone."""
    return [
        cast(SearchableStrategy, other)
        for other in strategy.others().values()
        if other.tuned_by == SearchTuner.name
        and not missing_members(type(other), SearchableStrategy)
    ]


def _plans(result: TuningResult, strategy: PortfolioStrategy, problem: TuningProblem) -> list[Plan]:
    """Returns the plans of all strategies that have one under the model, at least one."""
    profile, model = result.profile, result.cost_model
    assert profile is not None and model is not None
    num_lanes = max_lanes(strategy, problem.runs_streams)
    others = with_measured_contention(strategy, result.contention).others().values()
    plans = []
    for other, dtype in itertools.product(others, problem.wire_dtypes):
        try:
            plan = make_plan(profile, model, other, dtype)
            plans.append(adapt_to_engine(plan, profile, model, num_lanes))
        except ValueError:  # the planner finds no plan under this model
            continue
    return plans or [result.plan]
