"""Fit and plan: from observations to a tested cost model and a plan, with fallbacks."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tf_libra.autotune.calibration import calibrate
from tf_libra.autotune.concurrent_all_reduces import (
    adapt_to_engine,
    max_lanes,
    measured_contention,
    with_measured_contention,
)
from tf_libra.autotune.cross_validation import MIN_PLANS, cross_validate, steady_state_samples
from tf_libra.autotune.observations import Observations, ProfiledStep
from tf_libra.autotune.parametric_models import CpuShareFamily
from tf_libra.autotune.sampling_plans import one_group_plan, tensor_specs
from tf_libra.autotune.step_times import StepTimes, step_times
from tf_libra.autotune.trial import Phase
from tf_libra.autotune.tuner import TuningProblem
from tf_libra.autotune.tuning_result import TuningResult
from tf_libra.cost_model import ContentionModel, CostModel, OverlapSample
from tf_libra.cost_model import fit as fit_model
from tf_libra.internal import formatting
from tf_libra.planning import data_parallel as strategies
from tf_libra.planning import make_plan
from tf_libra.profiling.gradient_timing import MeasuredProfile
from tf_libra.profiling.overlap_samples import exclude_waiting, measured_timeline, overlap_samples
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan


def fit_and_plan(
    problem: TuningProblem,
    observations: Observations,
    profile: MeasuredProfile | None,
    notes: list[str],
) -> TuningResult:
    """Fits a cost model and plans by it; falls back to a simpler plan, with a note, on failure."""
    strategy, num_workers = problem.strategy, problem.num_workers
    threads = strategy.allowed_threads
    if profile is None:
        notes.append("no profile could be measured: one all-reduce after backward")
        plan = one_group_plan(problem.tensors, threads[0], num_workers, strategies.SynEasgd.name)
        plan = _unpredicted(replace(plan, notes=tuple(notes)), problem)
        return TuningResult(plan, notes=plan.notes)
    problem.on_phase(Phase.FIT)
    samples: list[OverlapSample] = []
    try:
        fitted = _fit(problem, observations, profile.profile, samples, notes)
    except ValueError as error:
        notes.append(f"no model could be fitted ({error}): one all-reduce after backward")
        plan = _fallback_plan(profile.profile, threads[0], num_workers, notes)
        plan = _unpredicted(plan, problem)
        return TuningResult(plan, profile.profile, samples=tuple(samples), notes=plan.notes)
    problem.on_phase(Phase.PLAN)
    steps = step_times(observations.concurrent)
    if steps and fitted.cost_model is not None:
        assert fitted.profile is not None
        try:
            gamma = measured_contention(fitted.profile, steps, fitted.cost_model)
        except ValueError as error:
            notes.append(f"contention of concurrent all-reduces is unknown: {error}")
        else:
            notes.append(f"a byte takes {gamma:.2f} times as long in two concurrent all-reduces")
            fitted = replace(fitted, contention=gamma)
    plan = _plan(problem, fitted, notes)
    return replace(fitted, plan=plan, notes=tuple(notes), max_model_error=problem.max_model_error)


def _fit(
    problem: TuningProblem,
    observations: Observations,
    profile: BackwardProfile,
    samples: list[OverlapSample],
    notes: list[str],
) -> TuningResult:
    """Returns a result whose plan is a placeholder; adds to `samples` and `notes`.

    Lanes take time of the cores that compute, and leave records of every step: the CPU-share model
    is fitted to steady-state steps. LIBRA's form is fitted to traced all-reduces of other engines,
    and if steps do not suffice to fit and test the CPU-share model.
    """
    steps = observations.steady_state_steps()
    fitted = None
    if len(steps) >= MIN_PLANS:
        try:
            fitted = _fit_cpu_share(problem, observations, profile, steps)
            samples += fitted.samples
        except ValueError as error:
            notes.append(f"steps do not determine shares of cores: {error}")
    if fitted is None:
        fitted = _fit_contention(problem, observations, profile, samples, notes)
    if problem.wire is not None and fitted.cost_model is not None:
        model = fitted.cost_model.with_rounding(problem.wire.rounding_per_byte)
        fitted = replace(fitted, cost_model=model)
    return fitted


def _fit_cpu_share(
    problem: TuningProblem,
    observations: Observations,
    profile: BackwardProfile,
    steps: Sequence[StepTimes],
) -> TuningResult:
    # On one core, an all-reduce through shared memory is core time alone.
    core_seconds = None
    if not problem.on_one_host or problem.cores > 1:
        core_seconds = observations.core_seconds_per_byte(problem.num_workers)
    family = CpuShareFamily(
        problem.num_workers,
        core_seconds,
        problem.cores,
        problem.hops,
        problem.workers_per_host,
    )
    before_seconds = observations.before_seconds(steps)
    exclusive_steps = observations.exclusive_steps()
    calibration = calibrate(profile, (*steps, *exclusive_steps), family, before_seconds)
    errors = cross_validate(profile, steps, family, before_seconds, exclusive_steps)
    return TuningResult(
        _fallback_plan(profile, 1, problem.num_workers, ()),
        calibration.profile,
        calibration.model,
        errors.step,
        steady_state_samples(calibration, steps),
        rest_seconds=calibration.rest_seconds,
        held_out_backward_error=errors.backward,
    )


def _fit_contention(
    problem: TuningProblem,
    observations: Observations,
    profile: BackwardProfile,
    samples: list[OverlapSample],
    notes: list[str],
) -> TuningResult:
    fit = partial(
        fit_model,
        num_workers=problem.num_workers,
        hops=problem.hops,
        workers_per_host=problem.workers_per_host,
    )
    exclusive = _samples(observations, observations.after_backward, profile)
    samples += exclusive + _samples(observations, observations.overlapped, profile)
    fitted = fit(samples)
    held_out: dict[str, ContentionModel] = {}
    plans = dict.fromkeys(step.plan.fingerprint for step in observations.overlapped)
    for fingerprint in plans if len(plans) >= MIN_PLANS else ():
        # Parameters that only this plan's steps determine cannot be fitted without it.
        with contextlib.suppress(ValueError):
            others = _samples(observations, observations.without(fingerprint), profile)
            held_out[fingerprint] = fit(exclusive + others).model
    error = _held_out_error(held_out, profile, observations.overlapped)
    notes += [*fitted.notes, *fitted.warnings]
    return TuningResult(
        _fallback_plan(profile, 1, problem.num_workers, ()),
        profile,
        fitted.model,
        error,
        tuple(samples),
        held_out_backward_error=error,
    )


def _plan(problem: TuningProblem, fitted: TuningResult, notes: list[str]) -> Plan:
    profile, model = fitted.profile, fitted.cost_model
    assert profile is not None and model is not None
    strategy = with_measured_contention(problem.strategy, fitted.contention)
    num_lanes = max_lanes(strategy, problem.runs_streams)
    trusted = _trusted_strategy(strategy, fitted.held_out_error, problem.max_model_error, notes)
    try:
        plans = [
            adapt_to_engine(make_plan(profile, model, trusted, dtype), profile, model, num_lanes)
            for dtype in problem.wire_dtypes
        ]
        if not problem.tries_gathers:
            plans = [_without_gathers(plan, profile, model) for plan in plans]
        whole = problem.whole_updates
        seconds = [simulate(profile, plan, model, whole).step_seconds for plan in plans]
        if problem.wire is not None:
            notes.append(
                f"predicted backward and updates: {formatting.time(seconds[0])}, or"
                f" {formatting.time(seconds[1])} with float32 gradients rounded to"
                f" {problem.wire.dtype} between ranks"
            )
        plan = plans[seconds.index(min(seconds))]
        return replace(plan, notes=(*plan.notes, *notes))
    except ValueError as error:
        notes.append(
            f"{trusted.name} found no plan under the fitted model ({error}): one all-reduce after"
            " backward"
        )
        threads = strategy.allowed_threads[0]
        return _fallback_plan(profile, threads, problem.num_workers, notes)


def _without_gathers(plan: Plan, profile: BackwardProfile, model: CostModel) -> Plan:
    """Returns the plan with all-reduces in place of reduce-scatters and gathers."""
    if not plan.gathers:
        return plan
    note = "no update can be sharded: gradients are all-reduced, and no weights are gathered"
    plan = replace(plan, gathers=(), notes=(*plan.notes, note))
    return replace(plan, predicted_seconds=simulate(profile, plan, model).backward_seconds)


def _fallback_plan(
    profile: BackwardProfile, num_threads: int, num_workers: int, notes: Sequence[str]
) -> Plan:
    """Returns the plan of one all-reduce after backward, for use if no better one is known."""
    specs = tensor_specs(profile)
    plan = one_group_plan(specs, num_threads, num_workers, strategies.SynEasgd.name)
    return replace(plan, notes=tuple(notes))


def _unpredicted(plan: Plan, problem: TuningProblem) -> Plan:
    """Returns the plan in the lossy wire format if the user allows one, since no model decides."""
    if problem.wire is None:
        return plan
    note = f"float32 gradients are rounded to {problem.wire.dtype}: no model compares it"
    return replace(plan, wire_dtype=problem.wire.dtype, notes=(*plan.notes, note))


def _trusted_strategy(
    strategy: strategies.Strategy, error: float | None, max_model_error: float, notes: list[str]
) -> strategies.Strategy:
    """Returns the strategy, or MG-WFBP if it would choose threads by an untrusted model.

    MG-WFBP chooses no threads. It uses measured values only: production times of gradients, and
    durations of all-reduces without overlap.
    """
    if not strategy.chooses_threads or is_trusted(error, max_model_error):
        return strategy
    reason = "the model was not tested on held-out steps"
    if error is not None:
        reason = (
            f"the model's median error on held-out steps is {formatting.percent(error)}, above"
            f" max_model_error = {formatting.percent(max_model_error)}"
        )
    note = f"{reason}: MG-WFBP plans instead of {strategy.name}"
    notes.append(f"{note} unless {strategy.name} wins the trials" if strategy.races else note)
    return strategies.MgWfbp(num_threads=min(strategy.allowed_threads))


def is_trusted(error: float | None, max_model_error: float) -> bool:
    """Returns whether a model was tested and its error is small enough."""
    return error is not None and error <= max_model_error


def _samples(
    observations: Observations, steps: Sequence[ProfiledStep], profile: BackwardProfile
) -> list[OverlapSample]:
    records = [record for step in steps for record in step.records]
    # Waiting for a slower rank depends neither on the network nor on the threads.
    working = exclude_waiting(observations.effective(records))
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
    held_out: Mapping[str, ContentionModel],
    profile: BackwardProfile,
    steps: Sequence[ProfiledStep],
) -> float | None:
    """Returns the median error of backward over traced plans, each by a fit without it."""
    errors = []
    for fingerprint, model in held_out.items():
        own = [step for step in steps if step.plan.fingerprint == fingerprint]
        if not own:
            continue
        # The model predicts the median step, not single disturbed ones.
        timelines = [measured_timeline(step.records, step.production) for step in own]
        seconds = float(np.median([timeline.backward_seconds for timeline in timelines]))
        # A plan whose threads leave no computation under the model cannot be simulated.
        with contextlib.suppress(ValueError):
            predicted = simulate(profile, own[0].plan, model).backward_seconds
            errors.append(abs(predicted - seconds) / seconds)
    return float(np.median(errors)) if errors else None
