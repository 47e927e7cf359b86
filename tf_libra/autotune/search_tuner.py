"""Search tuner (AIACC's auto-tuning): searches settings in training steps, then races the best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from tf_libra.autotune.model_tuner import race_candidates
from tf_libra.autotune.observations import Observations
from tf_libra.autotune.sampling_plans import TensorSpec, one_group_plan
from tf_libra.autotune.search.driver import plan_for_setting, search
from tf_libra.autotune.search.result import Search
from tf_libra.autotune.search.space import SearchableStrategy, Space
from tf_libra.autotune.trial_schedule import measuring_trials, run_trials
from tf_libra.autotune.tuner import Tuner, TuningProblem, register
from tf_libra.autotune.tuning_result import TuningResult
from tf_libra.planning import data_parallel as strategies
from tf_libra.planning.strategy import Strategy
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

# Share of the remaining steps for a race of the best settings: interleaved steps separate them
# better than the same number of steps at the searchers' choice of time.
_RACE_SHARE = 0.35
_FINALISTS = 5
# Best settings that are also tried in the lossy wire format, if the user allows one.
_LOSSY = 2


@register
@dataclass(frozen=True)
class SearchTuner:
    """Tuner that measures steps under settings and fits no model."""

    name: ClassVar[str] = "search"
    accepts: ClassVar[type[Any]] = SearchableStrategy

    def uses_warm_start(self, strategy: Strategy) -> bool:
        """Returns True: the search starts with the settings of a similar job."""
        return True

    def tune(self, problem: TuningProblem) -> Tuner:
        """Measures production times, searches settings, races the best."""
        return _tune(problem, cast(SearchableStrategy, problem.strategy))


def _tune(problem: TuningProblem, strategy: SearchableStrategy) -> Tuner:
    tensors, num_workers, budget = problem.tensors, problem.num_workers, problem.budget
    observations, threads = Observations(), strategy.allowed_threads[:1]
    yield from run_trials(measuring_trials(tensors, threads, num_workers), observations, budget)
    measured = observations.profile(tensors)
    notes = observations.problem_notes()
    profile = None if measured is None else measured.profile
    packed = profile
    if packed is None:
        notes.append("no profile could be measured: units are packed in the order of tracing")
        packed = traced_profile(tensors)
    steps = budget.steps_left - round(_RACE_SHARE * budget.steps_left)
    rate = observations.bytes_per_second(num_workers)
    warm_start = problem.find_warm_start(rate)
    settings = () if warm_start is None else warm_start.settings
    if settings:
        described = "; ".join(setting.describe() for setting in settings)
        notes.append(f"the search started with the best settings of a similar job: {described}")
    found = yield from search(
        packed,
        strategy,
        num_workers,
        budget,
        steps,
        notes,
        problem.runs_streams,
        settings,
        overlaps=problem.overlaps,
    )
    result = search_result(
        found, profile, packed, strategy, tensors, num_workers, notes, problem.runs_streams
    )
    # A search that measured one of several settings is not cached.
    fewest = min(2, Space.for_strategy(strategy, packed, problem.runs_streams).size)
    is_complete = result.is_complete and len(found.seconds) >= fewest
    result = replace(result, bytes_per_second=rate, is_complete=is_complete)
    if found.best is None:
        return result
    finalists = best_plans(found, packed, strategy, problem, _FINALISTS)
    plans = {plan.fingerprint: plan for plan in finalists}
    if problem.wire is not None:
        lossy = [replace(plan, wire_dtype=problem.wire.dtype) for plan in finalists[:_LOSSY]]
        plans |= {plan.fingerprint: plan for plan in lossy}
    active_plan = problem.active_plan
    if active_plan is not None:
        plans.setdefault(active_plan.fingerprint, result.with_prediction(active_plan))
    candidates = [(plan, None) for plan in plans.values()]
    return (yield from race_candidates(result, candidates, problem, finalists))


def best_plans(
    found: Search,
    packed: BackwardProfile,
    strategy: SearchableStrategy,
    problem: TuningProblem,
    count: int,
) -> list[Plan]:
    """Returns up to `count` different plans of the best settings, the best first."""
    plans: dict[str, Plan] = {}
    for setting in found.seconds:
        plan = plan_for_setting(
            packed, strategy, setting, problem.num_workers, problem.runs_streams
        )
        plans.setdefault(plan.fingerprint, plan)
    return list(plans.values())[:count]


def search_result(
    found: Search,
    profile: BackwardProfile | None,
    packed: BackwardProfile,
    strategy: SearchableStrategy,
    tensors: Sequence[TensorSpec],
    num_workers: int,
    notes: Sequence[str],
    runs_streams: bool,
) -> TuningResult:
    """Returns the result of a search; one all-reduce if it measured no setting."""
    if found.best is None:
        texts = (*notes, "no setting was measured: one all-reduce after backward")
        plan = one_group_plan(tensors, 1, num_workers, strategies.SynEasgd.name)
        return TuningResult(replace(plan, notes=texts), profile, notes=texts)
    plan = plan_for_setting(packed, strategy, found.best, num_workers, runs_streams)
    texts = (found.describe(), *notes)
    plan = replace(plan, notes=(*plan.notes, *texts))
    return TuningResult(plan, profile, notes=texts, is_complete=profile is not None, search=found)


def traced_profile(tensors: Sequence[TensorSpec]) -> BackwardProfile:
    """Returns a profile of the traced tensors without times."""
    return BackwardProfile.from_arrays(
        [tensor.num_bytes for tensor in tensors],
        [0.0] * len(tensors),
        [tensor.name for tensor in tensors],
        [tensor.dtype for tensor in tensors],
    )
