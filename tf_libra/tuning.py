"""From the first training steps to a plan: what to try, what came of it, what to conclude.

LIBRA's Algorithm 2, as rank 0 runs it. It drives nothing: it yields experiments, is sent what
happened, and returns a conclusion, so that it can be run against a simulated machine as well.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from tf_libra import checks, strategies
from tf_libra.cost_model import ContentionModel, FitResult, OverlapSample, fit
from tf_libra.model.plan import Plan, TensorGroup
from tf_libra.model.profile import BackwardProfile
from tf_libra.planning import make_plan
from tf_libra.simulation import simulate

if TYPE_CHECKING:
    from tf_libra.model.telemetry import AllReduceRecord
    from tf_libra.profiling.backward import MeasuredProfile, StepProduction

# Untraced steps under one all-reduce after backward: what a step takes without any plan.
BASELINE_STEPS = 5
# Traced steps per plan, after one that pays for the plan's instantiation.
MEASURED_STEPS = 3
SAMPLED_STEPS = 3
SAMPLED_PLANS = 12
# Every so many random plans are held out of the fit, to be predicted by it.
HELD_OUT_EVERY = 4
# A random plan has at most so many groups: all-reduces too small to tell startup from
# transmission teach nothing.
MAX_SAMPLED_GROUPS = 6
# Sizes of the all-reduces after backward, as shares of all bytes: an all-reduce's time is to be
# seen at sizes that differ several times over, for every thread count.
MEASURED_SHARES = (0.55, 0.3, 0.1, 0.05)


class Phase(StrEnum):
    """Where a training function is in its life."""

    TRACE = "trace"
    MEASURE = "measure"
    SAMPLE = "sample"
    FIT = "fit"
    PLAN = "plan"
    RUN = "run"
    PASS_THROUGH = "pass-through"


@dataclass(frozen=True)
class TensorSpec:
    """One gradient as tracing knows it, before anything was measured."""

    name: str
    num_bytes: int
    dtype: str


@dataclass(frozen=True)
class Budget:
    """How much may go by before a plan is in force.

    Attributes:
        max_steps: training steps, at least 1.
        max_seconds: seconds of the wall clock, above 0.

    Raises:
        ValueError: a limit is out of its range.
    """

    max_steps: int = 100
    max_seconds: float = 60.0

    def __post_init__(self) -> None:
        checks.integer("max_tuning_steps", self.max_steps, minimum=1)
        checks.real("max_tuning_seconds", self.max_seconds, above=0)


@dataclass(frozen=True)
class Experiment:
    """What the next training step tries; it trains as well.

    Attributes:
        phase: MEASURE or SAMPLE.
        plan: what it runs under.
        traced: whether rank 0 is to observe it.
    """

    phase: Phase
    plan: Plan
    traced: bool


@dataclass(frozen=True, eq=False)
class Observation:
    """What rank 0 saw of a traced step.

    Attributes:
        production: when gradients were produced; None where the step could not be traced.
        records: the all-reduces that were executed.
        problem: why there is no production, else empty.
        called_ns: when the step was called and when it returned, nanoseconds since the epoch.
    """

    production: "StepProduction | None"
    records: "tuple[AllReduceRecord, ...]"
    problem: str = ""
    called_ns: tuple[int, int] = (0, 0)


@dataclass(frozen=True, eq=False)
class Tuned:
    """What tuning has come to.

    Attributes:
        plan: to run under.
        profile: measured backward computation; None where the budget was too short for one.
        cost_model: fitted; None where there was too little to fit.
        fit: how well the model fits the samples it was fitted to; None without a model.
        held_out_error: median over the plans that the fit has not seen of the relative error of
            predicted backward time, against the median of a plan's steps; None without such plans.
        samples: everything the model was fitted to.
        is_complete: whether all experiments were made and observed, and a model fitted.
        notes: what a reader should know, such as a budget that ended early.
    """

    plan: Plan
    profile: "MeasuredProfile | None"
    cost_model: ContentionModel | None
    fit: FitResult | None
    held_out_error: float | None
    samples: tuple[OverlapSample, ...] = ()
    notes: tuple[str, ...] = ()
    is_complete: bool = False


@dataclass
class _Findings:
    """What has been seen so far."""

    after_backward: "list[tuple[StepProduction, tuple[AllReduceRecord, ...]]]" = field(
        default_factory=list
    )
    overlapped: "list[tuple[Plan, StepProduction, tuple[AllReduceRecord, ...]]]" = field(
        default_factory=list
    )
    problems: dict[str, int] = field(default_factory=dict)


Tuning = Generator[Experiment, Observation | None, Tuned]


def tune(
    tensors: Sequence[TensorSpec],
    strategy: strategies.Strategy,
    num_workers: int,
    budget: Budget,
    max_model_error: float = 0.25,
    clock: Callable[[], float] = time.monotonic,
    begins: "Callable[[Phase], None]" = lambda phase: None,
) -> Tuning:
    """Yields experiments until the budget is spent or all is known; returns a plan.

    The generator is sent an `Observation` for every traced experiment, None for others.

    Args:
        tensors: in backward order as far as tracing knows it.
        strategy: what to plan with.
        num_workers: world size.
        budget: what may go by.
        max_model_error: beyond this median relative error on held-out steps the model is not
            trusted to choose threads, and MG-WFBP plans instead of LIBRA.
        clock: seconds.
        begins: called when FIT and PLAN begin, which are no steps.
    """
    findings = _Findings()
    threads = strategy.allowed_threads
    deadline = clock() + budget.max_seconds
    steps_left = budget.max_steps

    def spend() -> bool:
        nonlocal steps_left
        if steps_left <= 0 or clock() >= deadline:
            return False
        steps_left -= 1
        return True

    complete = True
    baseline = one_group_plan(tensors, threads[0], num_workers, strategies.SynEasgd.name)
    for _ in range(1 + BASELINE_STEPS):
        if not (complete := complete and spend()):
            break
        yield Experiment(Phase.MEASURE, baseline, traced=False)
    for plan in measuring_plans(tensors, threads, num_workers):
        for repetition in range(1 + MEASURED_STEPS):
            if not (complete := complete and spend()):
                break
            observation = yield Experiment(Phase.MEASURE, plan, traced=repetition > 0)
            _note(findings, observation, None)

    profile = _profile(findings, tensors)
    if profile is not None:
        # The first is the most telling: gradients are all-reduced as they are produced.
        for plan in random_plans(profile.profile, threads, num_workers, SAMPLED_PLANS):
            for repetition in range(1 + SAMPLED_STEPS):
                if not (complete := complete and spend()):
                    break
                observation = yield Experiment(Phase.SAMPLE, plan, traced=repetition > 0)
                _note(findings, observation, plan)
    notes = [f"{problem} ({times} times)" for problem, times in findings.problems.items()]
    if not complete:
        notes.append(
            f"the budget of {budget.max_steps} steps or {budget.max_seconds:g} s ended before all"
            " experiments were made; the plan rests on those that were"
        )
    tuned = conclude(
        findings, profile, tensors, strategy, num_workers, max_model_error, notes, begins
    )
    return replace(tuned, is_complete=complete and tuned.cost_model is not None)


def one_group_plan(
    tensors: Sequence[TensorSpec], num_threads: int, num_workers: int, strategy: str
) -> Plan:
    """One all-reduce of everything after backward: needs no knowledge but the tensors."""
    return _plan(tensors, [0, len(tensors)], [num_threads], num_workers, strategy)


def measuring_plans(
    tensors: Sequence[TensorSpec], threads: Sequence[int], num_workers: int
) -> list[Plan]:
    """Plans that communicate after backward: one per thread count, with groups of several sizes."""
    sizes = np.array([tensor.num_bytes for tensor in tensors], dtype=float)
    before = np.concatenate([[0.0], np.cumsum(sizes)]) / max(sizes.sum(), 1.0)
    plans = []
    for index, num_threads in enumerate(threads):
        # Another order of sizes for every count, so that no place in a step has one size only.
        shares = np.roll(MEASURED_SHARES, index)
        cuts = {int(np.argmin(np.abs(before - share))) for share in np.cumsum(shares)[:-1]}
        edges = sorted(cuts | {0, len(tensors)})
        plans.append(
            _plan(
                tensors,
                edges,
                [num_threads] * (len(edges) - 1),
                num_workers,
                "measure",
                after_backward=True,
            )
        )
    return plans


def random_plans(
    profile: BackwardProfile, threads: Sequence[int], num_workers: int, count: int, seed: int = 0
) -> list[Plan]:
    """At most `count` random fusions with random threads (LIBRA, Algorithm 2, line 2).

    The same ones for the same arguments.
    """
    random = np.random.default_rng(seed)
    specs = [TensorSpec(t.name, t.num_bytes, t.dtype or "") for t in profile.tensors]
    # Where to cut: by tensors every other time, by bytes between, since a model's bytes may
    # well be in a few of its tensors.
    by_bytes = np.cumsum(profile.num_bytes) / max(int(profile.num_bytes.sum()), 1)
    plans: list[Plan] = []
    seen: set[str] = set()
    for index in range(count):
        most = min(MAX_SAMPLED_GROUPS, len(specs))
        num_groups = int(random.integers(min(2, most), most + 1))
        places = random.random(num_groups - 1)
        cuts = places * len(specs) if index % 2 else np.searchsorted(by_bytes, places)
        inner = {min(max(int(cut), 1), len(specs) - 1) for cut in cuts if len(specs) > 1}
        edges = [0, *sorted(inner), len(specs)]
        # Every thread count leads as often as any other, so that none goes unsampled.
        chosen = [int(threads[index % len(threads)])]
        chosen += [int(r) for r in random.choice(threads, size=len(edges) - 2)]
        plan = _plan(specs, edges, chosen, num_workers, "sample")
        # A model of few tensors has few plans, and the same one again teaches nothing new.
        if plan.fingerprint not in seen:
            seen.add(plan.fingerprint)
            plans.append(plan)
    return plans


def conclude(
    findings: _Findings,
    profile: "MeasuredProfile | None",
    tensors: Sequence[TensorSpec],
    strategy: strategies.Strategy,
    num_workers: int,
    max_model_error: float,
    notes: list[str],
    begins: Callable[[Phase], None],
) -> Tuned:
    """Fits what has been seen and plans by it; falls back, and says so, where that fails."""
    threads = strategy.allowed_threads
    if profile is None:
        notes.append("no profile could be measured: one all-reduce after backward")
        plan = one_group_plan(tensors, threads[0], num_workers, strategies.SynEasgd.name)
        return Tuned(replace(plan, notes=tuple(notes)), None, None, None, None, (), tuple(notes))
    fitting, held_out = _split(findings)
    samples: list[OverlapSample] = []
    begins(Phase.FIT)
    try:
        samples += _samples(findings.after_backward, profile.profile)
        samples += _samples([(p, r) for _, p, r in fitting], profile.profile)
        partial = fit(samples, num_workers)
        error = _held_out_error(partial.model, profile.profile, held_out)
        samples += _samples([(p, r) for _, p, r in held_out], profile.profile)
        fitted = fit(samples, num_workers)
        notes += [*fitted.notes, *fitted.warnings]
    except ValueError as problem:
        notes.append(f"no model could be fitted ({problem}): one all-reduce after backward")
        plan = _one_group_of(profile, threads[0], num_workers, notes)
        return Tuned(plan, profile, None, None, None, tuple(samples), tuple(notes))
    trusted = _trusted_strategy(strategy, error, max_model_error, notes)
    begins(Phase.PLAN)
    try:
        plan = _one_stream(make_plan(profile.profile, fitted.model, trusted), profile, fitted.model)
    except ValueError as problem:
        notes.append(
            f"{trusted.name} has found no plan by the model that was fitted ({problem}): one"
            " all-reduce after backward"
        )
        plan = _one_group_of(profile, threads[0], num_workers, notes)
        return Tuned(plan, profile, fitted.model, fitted, error, tuple(samples), tuple(notes))
    plan = replace(plan, notes=(*plan.notes, *notes))
    return Tuned(plan, profile, fitted.model, fitted, error, tuple(samples), tuple(notes))


def _one_group_of(
    profile: "MeasuredProfile", num_threads: int, num_workers: int, notes: Sequence[str]
) -> Plan:
    """What training falls back to where nothing better is known."""
    specs = [TensorSpec(t.name, t.num_bytes, t.dtype or "") for t in profile.profile.tensors]
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


def _one_stream(plan: Plan, profile: "MeasuredProfile", model: ContentionModel) -> Plan:
    """The plan as the engine can run it, which runs one all-reduce at a time."""
    if all(group.stream == 0 for group in plan.groups):
        return plan
    groups = tuple(replace(group, stream=0) for group in plan.groups)
    note = "simultaneous all-reduces run one after the other: the engine runs one at a time"
    plan = replace(plan, groups=groups, notes=(*plan.notes, note))
    seconds = simulate(profile.profile, plan, model).backward_seconds
    return replace(plan, predicted_seconds=seconds)


def _plan(
    tensors: Sequence[TensorSpec],
    edges: Sequence[int],
    threads: Sequence[int],
    num_workers: int,
    strategy: str,
    after_backward: bool = False,
) -> Plan:
    groups = tuple(
        TensorGroup(start, stop, num_threads)
        for start, stop, num_threads in zip(edges[:-1], edges[1:], threads, strict=True)
    )
    return Plan(
        groups=groups,
        tensor_names=tuple(tensor.name for tensor in tensors),
        num_bytes=tuple(tensor.num_bytes for tensor in tensors),
        num_workers=num_workers,
        strategy=strategy,
        after_backward=after_backward,
        dtypes=tuple(tensor.dtype for tensor in tensors),
    )


def _note(findings: _Findings, observation: Observation | None, plan: Plan | None) -> None:
    if observation is None:
        return
    if observation.production is None:
        problem = observation.problem
        findings.problems[problem] = findings.problems.get(problem, 0) + 1
    elif plan is None:
        findings.after_backward.append((observation.production, observation.records))
    elif observation.records:  # else the step has only accumulated gradients
        findings.overlapped.append((plan, observation.production, observation.records))


def _profile(findings: _Findings, tensors: Sequence[TensorSpec]) -> "MeasuredProfile | None":
    from tf_libra.profiling.backward import measured_profile

    sizes: Mapping[str, int] = {tensor.name: tensor.num_bytes for tensor in tensors}
    dtypes = {tensor.name: tensor.dtype for tensor in tensors}
    steps = [production for production, _ in findings.after_backward]
    try:
        return measured_profile(steps, sizes, min_steps=1, dtypes=dtypes)
    except ValueError as problem:  # no reason to end the training
        findings.problems[str(problem)] = 1
        return None


def _samples(
    steps: "Sequence[tuple[StepProduction, Sequence[AllReduceRecord]]]", profile: BackwardProfile
) -> list[OverlapSample]:
    from tf_libra.profiling.samples import overlap_samples, without_waiting

    # Waiting for a rank that is behind is no property of the network or of the threads.
    working = without_waiting([record for _, records in steps for record in records])
    by_step = {record.step: [r for r in working if r.step == record.step] for record in working}
    return [
        sample
        for production, records in steps
        if records
        for sample in overlap_samples(by_step[records[0].step], production, profile).samples
    ]


def _split(findings: _Findings) -> tuple[list, list]:
    """Whole plans are held out: steps of one plan are too alike to test a model."""
    plans: list[str] = []
    for plan, _, _ in findings.overlapped:
        if plan.fingerprint not in plans:
            plans.append(plan.fingerprint)
    unseen = set(plans[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY])
    fitting = [one for one in findings.overlapped if one[0].fingerprint not in unseen]
    held_out = [one for one in findings.overlapped if one[0].fingerprint in unseen]
    return fitting, held_out


def _held_out_error(
    model: ContentionModel, profile: BackwardProfile, held_out: Sequence
) -> float | None:
    from tf_libra.profiling.samples import measured_timeline

    plans: dict[str, Plan] = {}
    measured: dict[str, list[float]] = {}
    for plan, production, records in held_out:
        plans[plan.fingerprint] = plan
        seconds = measured_timeline(records, production).backward_seconds
        measured.setdefault(plan.fingerprint, []).append(seconds)
    # The model predicts the usual step of a plan; what one step has in bad luck is not its fault.
    usual = {key: float(np.median(seconds)) for key, seconds in measured.items()}
    errors = [
        abs(simulate(profile, plans[key], model).backward_seconds - seconds) / seconds
        for key, seconds in usual.items()
    ]
    return float(np.median(errors)) if errors else None
