"""AIACC's auto-tuning: settings are searched in steps that train, and the best of them race."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tf_libra import strategies
from tf_libra.model.plan import Plan
from tf_libra.model.profile import BackwardProfile
from tf_libra.tuning.algorithm import BASELINE_STEPS, Tuner
from tf_libra.tuning.conclusion import Conclusion
from tf_libra.tuning.end_of_tuning import Budget, EndOfTuning
from tf_libra.tuning.experiments import baseline, made, measuring
from tf_libra.tuning.findings import Findings
from tf_libra.tuning.phase import Phase
from tf_libra.tuning.plans_to_try import TensorSpec, one_group_plan
from tf_libra.tuning.race import race
from tf_libra.tuning.search.result import Search
from tf_libra.tuning.search.searching import plan_of, search
from tf_libra.tuning.similar import Start

# Of the steps that are left, so many are for a race between the best settings: one step of each in
# turns tells them apart better than as many of each whenever a searcher came to it.
_RACE_SHARE = 0.25
_FINALISTS = 3


def tune_by_search(
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
    """Measures when gradients are produced, then searches; see `tuners.tune`.

    No model is fitted: what is measured decides.

    Args:
        tensors: see `tuners.tune`, as of the other arguments.
        strategy: an `Aiacc`.
        num_workers: see there.
        budget: see there.
        max_model_error: there is no model.
        clock: see there.
        begins: nothing but steps is done.
        hops: there is no model.
        runs_streams: see there.
        in_force: see there.
        start: where the search begins.
    """
    assert isinstance(strategy, strategies.Aiacc)
    end = EndOfTuning(budget, clock)
    findings, threads = Findings(), strategy.allowed_threads[:1]
    yield from made(baseline(tensors, threads[0], num_workers, BASELINE_STEPS), findings, end)
    yield from made(measuring(tensors, threads, num_workers), findings, end)
    measured = findings.profile(tensors)
    notes = [f"{problem} ({times} times)" for problem, times in findings.problems.items()]
    profile = None if measured is None else measured.profile
    packed = profile
    if packed is None:
        notes.append("units are packed in the order of tracing: no profile could be measured")
        packed = as_traced(tensors)
    steps = end.steps_left - round(_RACE_SHARE * end.steps_left)
    begin = None if start is None else start.setting
    if begin is not None:
        notes.append(
            f"the search began where that of a job that is alike ended: {begin.describe()}"
        )
    found = yield from search(packed, strategy, num_workers, end, steps, notes, runs_streams, begin)
    conclusion = searched(found, profile, packed, tensors, num_workers, notes, runs_streams)
    if found.best is None:
        return conclusion
    plans = [plan_of(packed, setting, num_workers, runs_streams) for setting in found.seconds]
    finalists = list({plan.fingerprint: plan for plan in plans}.values())[:_FINALISTS]
    if in_force is not None and in_force.fingerprint not in {p.fingerprint for p in finalists}:
        finalists.append(in_force)
    result = yield from race([(plan, None) for plan in finalists], end)
    return conclusion.after(result if in_force is None else result.keeping(in_force))


def searched(
    found: Search,
    profile: BackwardProfile | None,
    packed: BackwardProfile,
    tensors: Sequence[TensorSpec],
    num_workers: int,
    notes: Sequence[str],
    runs_streams: bool,
) -> Conclusion:
    """What a search has come to; one all-reduce where it has come to nothing."""
    if found.best is None:
        said = (*notes, "no setting was measured: one all-reduce after backward")
        plan = one_group_plan(tensors, 1, num_workers, strategies.SynEasgd.name)
        return Conclusion(replace(plan, notes=said), profile, notes=said)
    plan = plan_of(packed, found.best, num_workers, runs_streams)
    said = (found.describe(), *notes)
    plan = replace(plan, notes=(*plan.notes, *said))
    return Conclusion(plan, profile, notes=said, is_complete=profile is not None, search=found)


def as_traced(tensors: Sequence[TensorSpec]) -> BackwardProfile:
    """The tensors as tracing knows them, without any times."""
    return BackwardProfile.from_arrays(
        [tensor.num_bytes for tensor in tensors],
        [0.0] * len(tensors),
        [tensor.name for tensor in tensors],
        [tensor.dtype for tensor in tensors],
    )
