"""From what has been seen to a plan: fit, test, plan; and what to fall back to where one fails."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tf_libra import strategies
from tf_libra.autotune.engine_constraints import most_lanes, runnable
from tf_libra.autotune.model_selection import judged_forms
from tf_libra.autotune.observations import Observations, ProfiledStep
from tf_libra.autotune.phase import Phase
from tf_libra.autotune.problem import TuningProblem
from tf_libra.autotune.sampling_plans import one_group_plan, specs_of
from tf_libra.autotune.step_times import step_times
from tf_libra.autotune.stream_contention import informed, measured_contention
from tf_libra.autotune.tuning_result import TuningResult
from tf_libra.cost_model import ContentionModel, CostModel, OverlapSample
from tf_libra.cost_model import fit as fit_model
from tf_libra.internal import formatting
from tf_libra.planning import make_plan
from tf_libra.profiling.gradient_timing import MeasuredProfile
from tf_libra.profiling.overlap_samples import measured_timeline, overlap_samples, without_waiting
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

# A model is tested on the plans that were sampled, each by a fit to the others, if so many were.
_FEWEST_TO_TEST = 3


def fit_and_plan(
    task: TuningProblem, findings: Observations, profile: MeasuredProfile | None, notes: list[str]
) -> TuningResult:
    """Fits what has been seen and plans by it; falls back, and says so, where that fails."""
    strategy, num_workers = task.strategy, task.num_workers
    threads = strategy.allowed_threads
    if profile is None:
        notes.append("no profile could be measured: one all-reduce after backward")
        plan = one_group_plan(task.tensors, threads[0], num_workers, strategies.SynEasgd.name)
        return TuningResult(replace(plan, notes=tuple(notes)), notes=tuple(notes))
    task.begins(Phase.FIT)
    samples: list[OverlapSample] = []
    try:
        fitted = _fit(task, findings, profile.profile, samples, notes)
    except ValueError as problem:
        notes.append(f"no model could be fitted ({problem}): one all-reduce after backward")
        plan = _one_group_of(profile.profile, threads[0], num_workers, notes)
        return TuningResult(plan, profile.profile, samples=tuple(samples), notes=tuple(notes))
    task.begins(Phase.PLAN)
    if (steps := step_times(findings.at_once)) and fitted.cost_model is not None:
        assert fitted.profile is not None
        try:
            gamma = measured_contention(fitted.profile, steps, fitted.cost_model)
        except ValueError as problem:
            notes.append(f"what all-reduces at once cost each other is not known: {problem}")
        else:
            notes.append(
                f"while two all-reduces run at once, a byte takes {gamma:.2f} times as long"
            )
            fitted = replace(fitted, contention=gamma)
    strategy = informed(strategy, fitted.contention)
    plan = _plan(fitted, strategy, task.max_model_error, num_workers, notes, task.runs_streams)
    return replace(fitted, plan=plan, notes=tuple(notes), max_model_error=task.max_model_error)


def _fit(
    task: TuningProblem,
    findings: Observations,
    profile: BackwardProfile,
    samples: list[OverlapSample],
    notes: list[str],
) -> TuningResult:
    """A conclusion with all but a plan of its own: one all-reduce stands there."""
    num_workers = task.num_workers
    fit = partial(
        fit_model,
        num_workers=num_workers,
        hops=task.hops,
        workers_per_host=task.workers_per_host,
    )
    alone = _samples(findings.after_backward, profile)
    samples += alone + _samples(findings.overlapped, profile)
    fitted = fit(samples)
    without: dict[str, ContentionModel] = {}
    plans = dict.fromkeys(step.plan.fingerprint for step in findings.overlapped)
    for fingerprint in plans if len(plans) >= _FEWEST_TO_TEST else ():
        # What only this plan has shown cannot be fitted without it, and not be tested by it.
        with contextlib.suppress(ValueError):
            others = _samples(findings.without(fingerprint), profile)
            without[fingerprint] = fit(alone + others).model
    error = _held_out_error(without, profile, findings.overlapped)
    model: CostModel = fitted.model
    rest, found_profile = None, profile
    usual = findings.usual_steps()
    before_seconds = findings.before_seconds(usual)
    if forms := judged_forms(profile, usual, without, fitted.model, before_seconds):
        better, *worse = forms
        model, found_profile = better.calibration.model, better.calibration.profile
        rest, error = better.calibration.rest_seconds, better.held_out_error
        if better.median_error is not None:
            samples[:] = better.samples
        told = [
            f" and by {formatting.percent(other.held_out_error)} by that of {other.name}"
            for other in worse
        ]
        missed = formatting.percent(better.held_out_error)
        notes.append(
            f"steps of plans that it had not seen were missed by {missed} in the median by the"
            f" model of {','.join([better.name, *told])}"
        )
    if isinstance(model, ContentionModel):
        notes += [*fitted.notes, *fitted.warnings]
    placeholder = _one_group_of(profile, 1, num_workers, ())
    return TuningResult(
        placeholder,
        found_profile,
        model,
        error,
        tuple(samples),
        rest_seconds=rest,
    )


def _plan(
    fitted: TuningResult,
    strategy: strategies.Strategy,
    max_model_error: float,
    num_workers: int,
    notes: list[str],
    runs_streams: bool,
) -> Plan:
    profile, model = fitted.profile, fitted.cost_model
    assert profile is not None and model is not None
    num_lanes = most_lanes(strategy, runs_streams)
    trusted = _trusted_strategy(strategy, fitted.held_out_error, max_model_error, notes)
    try:
        plan = runnable(make_plan(profile, model, trusted), profile, model, num_lanes)
        return replace(plan, notes=(*plan.notes, *notes))
    except ValueError as problem:
        notes.append(
            f"{trusted.name} has found no plan by the model that was fitted ({problem}): one"
            " all-reduce after backward"
        )
        return _one_group_of(profile, strategy.allowed_threads[0], num_workers, notes)


def _one_group_of(
    profile: BackwardProfile, num_threads: int, num_workers: int, notes: Sequence[str]
) -> Plan:
    """Returns the plan that training falls back to if no better one is known."""
    plan = one_group_plan(specs_of(profile), num_threads, num_workers, strategies.SynEasgd.name)
    return replace(plan, notes=tuple(notes))


def _trusted_strategy(
    strategy: strategies.Strategy, error: float | None, max_model_error: float, notes: list[str]
) -> strategies.Strategy:
    """The strategy, or MG-WFBP where it would choose threads by a model that is not trusted.

    MG-WFBP chooses none, and goes by what is measured alone: when gradients are produced, and what
    all-reduces take that nothing overlaps.
    """
    if not strategy.chooses_threads or is_trusted(error, max_model_error):
        return strategy
    why = "the model was not tested on steps it has not seen"
    if error is not None:
        why = (
            f"the model misses steps by {formatting.percent(error)} in the median, more than the"
            f" {formatting.percent(max_model_error)} allowed"
        )
    note = f"{why}: MG-WFBP plans instead of {strategy.name}"
    notes.append(f"{note}, against which it may race" if strategy.races else note)
    return strategies.MgWfbp(num_threads=min(strategy.allowed_threads))


def is_trusted(error: float | None, max_model_error: float) -> bool:
    """Returns whether a model was tested and its error is small enough."""
    return error is not None and error <= max_model_error


def _samples(steps: Sequence[ProfiledStep], profile: BackwardProfile) -> list[OverlapSample]:
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
    without: Mapping[str, ContentionModel],
    profile: BackwardProfile,
    steps: Sequence[ProfiledStep],
) -> float | None:
    """Median over the plans of what a model misses of each that was fitted without it."""
    errors = []
    for fingerprint, model in without.items():
        own = [step for step in steps if step.plan.fingerprint == fingerprint]
        # The model predicts the usual step of a plan; what one has in bad luck is not its fault.
        seconds = float(
            np.median(
                [measured_timeline(one.records, one.production).backward_seconds for one in own]
            )
        )
        # A plan that the model cannot simulate, e.g. for threads that leave computation nothing,
        # is left out of the test.
        with contextlib.suppress(ValueError):
            predicted = simulate(profile, own[0].plan, model).backward_seconds
            errors.append(abs(predicted - seconds) / seconds)
    return float(np.median(errors)) if errors else None
