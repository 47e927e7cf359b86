"""AIACC's auto-tuning: settings are searched in steps that train, and the best of them race."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from tf_libra import strategies
from tf_libra.autotune.model_tuner import BASELINE_STEPS, raced
from tf_libra.autotune.observations import Observations
from tf_libra.autotune.problem import TuningProblem
from tf_libra.autotune.sampling_plans import TensorSpec, one_group_plan
from tf_libra.autotune.search.driver import plan_of, search
from tf_libra.autotune.search.result import Search
from tf_libra.autotune.search.space import Searched, Space
from tf_libra.autotune.trial_schedule import baseline, made, measuring
from tf_libra.autotune.tuner_registry import Tuner, register
from tf_libra.autotune.tuning_result import TuningResult
from tf_libra.planning.strategy import Strategy
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

# Of the steps that are left, so many are for a race between the best settings: one step of each in
# turns tells them apart better than as many of each whenever a searcher came to it.
_RACE_SHARE = 0.35
_FINALISTS = 5


@register
@dataclass(frozen=True)
class SearchTuner:
    """Tuner that measures real steps under settings, and fits no model."""

    name: ClassVar[str] = "search"
    takes: ClassVar[type[Any]] = Searched

    def asks_for_a_start(self, strategy: Strategy) -> bool:
        """The search begins with its settings."""
        return True

    def tune(self, task: TuningProblem) -> Tuner:
        """Measures when gradients are produced, searches, races."""
        return _tune(task, cast(Searched, task.strategy))


def _tune(task: TuningProblem, strategy: Searched) -> Tuner:
    tensors, num_workers, end = task.tensors, task.num_workers, task.end
    findings, threads = Observations(), strategy.allowed_threads[:1]
    yield from made(baseline(tensors, threads[0], num_workers, BASELINE_STEPS), findings, end)
    yield from made(measuring(tensors, threads, num_workers), findings, end)
    measured = findings.profile(tensors)
    notes = findings.notes()
    profile = None if measured is None else measured.profile
    packed = profile
    if packed is None:
        notes.append("units are packed in the order of tracing: no profile could be measured")
        packed = as_traced(tensors)
    steps = end.steps_left - round(_RACE_SHARE * end.steps_left)
    rate = findings.bytes_per_second(num_workers)
    start = task.start(rate)
    begin = () if start is None else start.settings
    if begin:
        told = "; ".join(setting.describe() for setting in begin)
        notes.append(f"the search began with the best of a job that is alike: {told}")
    found = yield from search(
        packed, strategy, num_workers, end, steps, notes, task.runs_streams, begin
    )
    conclusion = searched(
        found, profile, packed, strategy, tensors, num_workers, notes, task.runs_streams
    )
    # One setting of several that was measured is no search to be kept.
    fewest = min(2, Space.of(strategy, packed, task.runs_streams).size)
    is_complete = conclusion.is_complete and len(found.seconds) >= fewest
    conclusion = replace(conclusion, bytes_per_second=rate, is_complete=is_complete)
    if found.best is None:
        return conclusion
    tried = finalists(found, packed, strategy, task, _FINALISTS)
    plans = {plan.fingerprint: plan for plan in tried}
    if task.in_force is not None:
        plans.setdefault(task.in_force.fingerprint, conclusion.renewed(task.in_force))
    return (yield from raced(conclusion, [(plan, None) for plan in plans.values()], task, tried))


def finalists(
    found: Search, packed: BackwardProfile, strategy: Searched, task: TuningProblem, most: int
) -> list[Plan]:
    """The plans of the best settings, `most` different ones, the best first."""
    plans: dict[str, Plan] = {}
    for setting in found.seconds:
        plan = plan_of(packed, strategy, setting, task.num_workers, task.runs_streams)
        plans.setdefault(plan.fingerprint, plan)
    return list(plans.values())[:most]


def searched(
    found: Search,
    profile: BackwardProfile | None,
    packed: BackwardProfile,
    strategy: Searched,
    tensors: Sequence[TensorSpec],
    num_workers: int,
    notes: Sequence[str],
    runs_streams: bool,
) -> TuningResult:
    """Returns the conclusion of a search; one all-reduce if it measured no setting."""
    if found.best is None:
        said = (*notes, "no setting was measured: one all-reduce after backward")
        plan = one_group_plan(tensors, 1, num_workers, strategies.SynEasgd.name)
        return TuningResult(replace(plan, notes=said), profile, notes=said)
    plan = plan_of(packed, strategy, found.best, num_workers, runs_streams)
    said = (found.describe(), *notes)
    plan = replace(plan, notes=(*plan.notes, *said))
    return TuningResult(plan, profile, notes=said, is_complete=profile is not None, search=found)


def as_traced(tensors: Sequence[TensorSpec]) -> BackwardProfile:
    """The tensors as tracing knows them, without any times."""
    return BackwardProfile.from_arrays(
        [tensor.num_bytes for tensor in tensors],
        [0.0] * len(tensors),
        [tensor.name for tensor in tensors],
        [tensor.dtype for tensor in tensors],
    )
