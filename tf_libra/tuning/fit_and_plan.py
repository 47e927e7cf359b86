"""From what has been seen to a plan: fit, test, plan; and what to fall back to where one fails."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tf_libra import strategies
from tf_libra.cost_model import ContentionModel, OverlapSample, fit
from tf_libra.model.plan import Plan, check_whole_tensors
from tf_libra.model.profile import BackwardProfile
from tf_libra.planning import make_plan
from tf_libra.profiling.backward import MeasuredProfile
from tf_libra.profiling.samples import measured_timeline, overlap_samples, without_waiting
from tf_libra.simulation import simulate
from tf_libra.tuning.conclusion import Conclusion
from tf_libra.tuning.findings import Findings, ObservedStep
from tf_libra.tuning.phase import Phase
from tf_libra.tuning.plans_to_try import TensorSpec, one_group_plan


def fit_and_plan(
    findings: Findings,
    profile: MeasuredProfile | None,
    tensors: Sequence[TensorSpec],
    strategy: strategies.Strategy,
    num_workers: int,
    max_model_error: float,
    notes: list[str],
    begins: Callable[[Phase], None],
    hops: int | None = None,
) -> Conclusion:
    """Fits what has been seen and plans by it; falls back, and says so, where that fails."""
    threads = strategy.allowed_threads
    if profile is None:
        notes.append("no profile could be measured: one all-reduce after backward")
        plan = one_group_plan(tensors, threads[0], num_workers, strategies.SynEasgd.name)
        return Conclusion(replace(plan, notes=tuple(notes)), notes=tuple(notes))
    measured = profile.profile
    fitting, held_out = findings.split()
    samples: list[OverlapSample] = []
    begins(Phase.FIT)
    try:
        samples += _samples(findings.after_backward, measured)
        samples += _samples(fitting, measured)
        partial = fit(samples, num_workers, hops=hops)
        error = _held_out_error(partial.model, measured, held_out)
        samples += _samples(held_out, measured)
        fitted = fit(samples, num_workers, hops=hops)
        notes += [*fitted.notes, *fitted.warnings]
    except ValueError as problem:
        notes.append(f"no model could be fitted ({problem}): one all-reduce after backward")
        plan = _one_group_of(measured, threads[0], num_workers, notes)
        return Conclusion(plan, measured, samples=tuple(samples), notes=tuple(notes))
    trusted = _trusted_strategy(strategy, error, max_model_error, notes)
    begins(Phase.PLAN)
    try:
        plan = _one_stream(make_plan(measured, fitted.model, trusted), measured, fitted.model)
        plan = replace(plan, notes=(*plan.notes, *notes))
    except ValueError as problem:
        notes.append(
            f"{trusted.name} has found no plan by the model that was fitted ({problem}): one"
            " all-reduce after backward"
        )
        plan = _one_group_of(measured, threads[0], num_workers, notes)
    return Conclusion(
        plan,
        measured,
        fitted.model,
        fitted.median_error,
        error,
        tuple(samples),
        tuple(notes),
    )


def _one_group_of(
    profile: BackwardProfile, num_threads: int, num_workers: int, notes: Sequence[str]
) -> Plan:
    """What training falls back to where nothing better is known."""
    specs = [TensorSpec(t.name, t.num_bytes, t.dtype or "") for t in profile.tensors]
    plan = one_group_plan(specs, num_threads, num_workers, strategies.SynEasgd.name)
    return replace(plan, notes=tuple(notes))


def _trusted_strategy(
    strategy: strategies.Strategy, error: float | None, max_model_error: float, notes: list[str]
) -> strategies.Strategy:
    """The strategy, or MG-WFBP where it would choose threads by a model that is not trusted."""
    if not strategy.chooses_threads:
        return strategy
    if error is None:
        notes.append(
            f"{strategy.name} plans by a model that was not tested on steps it has not seen"
        )
        return strategy
    if error <= max_model_error:
        return strategy
    notes.append(
        f"the model misses backward time by {error:.0%} in the median, more than the"
        f" {max_model_error:.0%} allowed: MG-WFBP plans instead of {strategy.name}"
    )
    return strategies.MgWfbp(num_threads=min(strategy.allowed_threads))


def _one_stream(plan: Plan, profile: BackwardProfile, model: ContentionModel) -> Plan:
    """The plan as the engine can run it, which runs one all-reduce of whole tensors at a time.

    Raises:
        ValueError: the plan cuts tensors.
    """
    check_whole_tensors(plan, "the engine")
    if all(group.stream == 0 for group in plan.groups):
        return plan
    groups = tuple(replace(group, stream=0) for group in plan.groups)
    note = "simultaneous all-reduces run one after the other: the engine runs one at a time"
    plan = replace(plan, groups=groups, notes=(*plan.notes, note))
    seconds = simulate(profile, plan, model).backward_seconds
    return replace(plan, predicted_seconds=seconds)


def _samples(steps: Sequence[ObservedStep], profile: BackwardProfile) -> list[OverlapSample]:
    # Waiting for a rank that is behind is no property of the network or of the threads.
    working = without_waiting([record for step in steps for record in step.records])
    by_step = {record.step: [r for r in working if r.step == record.step] for record in working}
    return [
        sample
        for step in steps
        if step.records
        for sample in overlap_samples(
            by_step[step.records[0].step], step.production, profile
        ).samples
    ]


def _held_out_error(
    model: ContentionModel, profile: BackwardProfile, held_out: Sequence[ObservedStep]
) -> float | None:
    plans: dict[str, Plan] = {}
    measured: dict[str, list[float]] = {}
    for step in held_out:
        plans[step.plan.fingerprint] = step.plan
        seconds = measured_timeline(step.records, step.production).backward_seconds
        measured.setdefault(step.plan.fingerprint, []).append(seconds)
    # The model predicts the usual step of a plan; what one step has in bad luck is not its fault.
    usual = {key: float(np.median(seconds)) for key, seconds in measured.items()}
    errors = [
        abs(simulate(profile, plans[key], model).backward_seconds - seconds) / seconds
        for key, seconds in usual.items()
    ]
    return float(np.median(errors)) if errors else None
