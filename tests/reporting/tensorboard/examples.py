"""Example records."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tf_libra import ContentionModel, make_burst_plan, make_pipeline_plan, make_plan, strategies
from tf_libra.autotune import TuningResult
from tf_libra.background_jobs.statistics import BackgroundRecord, BackgroundStats
from tf_libra.cost_model import CostModel, OverlapSample
from tf_libra.model_parallel.reporting.plan_records import BurstRecord, PipelineRecord
from tf_libra.model_parallel.simulation import simulate_pipeline
from tf_libra.model_parallel.simulation.burst_gantt import layers_of, stages_of
from tf_libra.model_parallel.simulation.pipeline_gantt import Bar, bars_of
from tf_libra.planning.family_comparison import FamilyComparison, FamilyRow, TrialCost
from tf_libra.planning.one_worker import OneWorkerComparison
from tf_libra.planning.strategy import REGISTRY, Draft, FixedThreads, groups_from_stops
from tf_libra.profiling.overlap_samples import MeasuredGroup, MeasuredTimeline
from tf_libra.reporting.families import FamilyRecord
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.records.step import AllReduceSpan, StepRecord
from tf_libra.reporting.records.timeline import TimelineRecord
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.plan import Plan, TensorGroup
from tf_libra.specs.scaling_profile import ScalingProfile

HOSTILE = (
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "x" * 10_000,
    "🐢🐇",
    "two\nlines\ttab",
    "\"quotes\" & 'apostrophes'",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Halves(FixedThreads):
    """Strategy outside of the package: groups of equally many tensors."""

    name: ClassVar[str] = "halves <b>"
    max_groups: int = 2

    def draft(self, profile: BackwardProfile, cost: CostModel) -> Draft:
        count = len(profile.tensors)
        stops = sorted({count * (k + 1) // self.max_groups for k in range(self.max_groups)} - {0})
        return Draft(groups_from_stops(stops, [self.num_threads] * len(stops)))


@contextlib.contextmanager
def halves() -> Iterator[type[Halves]]:
    """Registers the strategy as a user would, for the duration of the context."""
    strategies.register(Halves)
    try:
        yield Halves
    finally:
        REGISTRY.forget(Halves.name)


def profile(num_tensors: int = 24, names: tuple[str, ...] = (), seed: int = 0) -> BackwardProfile:
    """Returns a profile of very different sizes; the first tensors have the given names."""
    random = np.random.default_rng(seed)
    labels = [*names, *(f"layer_{i}/kernel" for i in range(len(names), num_tensors))]
    sizes = (4 * np.exp(random.uniform(3, 13, num_tensors))).astype(int)
    return BackwardProfile.from_arrays(
        sizes, random.uniform(1e-4, 3e-3, num_tensors), labels, ["float32"] * num_tensors
    )


def cost_model() -> ContentionModel:
    return ContentionModel(
        num_workers=2,
        hop_latency=4e-4,
        compute=(0.95, 0.1),
        overlapped=(1.1e9, 6e8, 0.5),
        exclusive=(2e9, 4e8, 0.5),
        exclusive_hop_latency=2e-4,
    )


def plan_record(
    function: str = "train_step",
    strategy: strategies.Strategy | None = None,
    num_tensors: int = 24,
    names: tuple[str, ...] = (),
    step: int = 61,
    num_groups: int | None = None,
) -> PlanRecord:
    """Returns an activated plan with samples; `num_groups` gives groups of equal length."""
    strategy = strategy or strategies.Libra(threads=(1, 2, 4), max_groups=5)
    gradients, model = profile(num_tensors, names), cost_model()
    random = np.random.default_rng(1)
    samples = []
    for index in range(60):
        size, r = int(random.uniform(1e5, 8e6)), (1, 2, 4)[index % 3]
        noise = float(np.exp(random.normal(0, 0.05)))
        overlapped = index % 2 == 0
        seconds = noise * float(
            model.overlapped_all_reduce(size, r)
            if overlapped
            else model.exclusive_all_reduce(size, r)
        )
        samples.append(
            OverlapSample(
                size,
                r,
                seconds * float(model.compute_rate(r)) if overlapped else 0.0,
                seconds if overlapped else 0.0,
                0.0 if overlapped else seconds,
                step=index,
                plan=f"plan{index % 7}",
            )
        )
    plan = make_plan(gradients, model, strategy)
    if num_groups is not None:
        size = num_tensors // num_groups
        groups = tuple(
            TensorGroup(i * size, (i + 1) * size, (1, 2, 4)[i % 3]) for i in range(num_groups)
        )
        plan = Plan.for_profile(gradients, groups, model.num_workers, strategy.name)
    return PlanRecord(
        function=function,
        step=step,
        origin="made",
        strategy=strategy,
        threads=strategy.allowed_threads,
        conclusion=TuningResult(
            plan=plan,
            profile=gradients,
            cost_model=model,
            held_out_error=0.09,
            held_out_backward_error=0.05,
            samples=tuple(samples),
            notes=("a note",),
            is_complete=True,
        ),
    )


def pipeline_record(
    function: str = "train_step", names: tuple[str, ...] = (), ranks: int = 2
) -> PipelineRecord:
    """Returns a pipeline of two stages that took 1.5 times as long as predicted."""
    labels = [*names, *(f"block_{i}" for i in range(len(names), 6))]
    layers = LayerGraph.chain([0.01] * 6, [0.02] * 6, [1e6] * 6, [1e5] * 5, labels)
    cluster = Cluster.from_bandwidth(
        [[0 if i == j else 1e9 for j in range(ranks)] for i in range(ranks)]
    )
    plan = make_pipeline_plan(layers, cluster, strategies.Spp(num_stages=2), num_microbatches=4)
    timeline = simulate_pipeline(layers, plan, cluster)
    bars = tuple(
        dataclasses.replace(
            bar, start_seconds=1.5 * bar.start_seconds, stop_seconds=1.5 * bar.stop_seconds
        )
        for bar in bars_of(plan, timeline)
    )
    seconds = 1.5 * timeline.iteration_seconds
    return PipelineRecord(function, 4, plan, layers, cluster, bars, seconds)


def family_record(reason: str = "its step is predicted to take 80 ms") -> FamilyRecord:
    """Returns families of which data parallelism goes on, and one is left out."""
    rows = (
        FamilyRow("data parallelism", 0.024, 0.023),
        FamilyRow("one-rank", 0.035, 0.033, is_bound=True),
        FamilyRow("spp", left_out=reason),
    )
    compared = OneWorkerComparison(2, 0.023, 0.033, 1.0, 1.0, evidence="measured")
    families = FamilyComparison(
        2, rows, "data parallelism", compared, trials=TrialCost(90, 2.5, 0.125)
    )
    return FamilyRecord("train_step", 90, families)


def burst_record(
    function: str = "train_step", names: tuple[str, ...] = (), ranks: int = 2
) -> BurstRecord:
    """Returns a burst plan that took 1.5 times as long as predicted.

    There are five layers, or forty on more than two ranks.
    """
    count = 5 if ranks == 2 else 40
    labels = [*names, *(f"block_{i}" for i in range(len(names), count))]
    counts = tuple(2**k for k in range(ranks.bit_length()))
    wide = [0.02, 0.02, 0.002, 0.01, 0.01] * (count // 5)
    compute = [[s / (1 if s < 0.005 else min(g, 4)) for g in counts] for s in wide]
    apart = [[0.0 if g == h else 1e-4 for h in counts] for g in counts]
    synchronize = [[1e-4 * (g > 1) for g in counts]] * count
    profile = ScalingProfile.chain(counts, compute, synchronize, [apart] * (count - 1), labels)
    plan = make_burst_plan(profile, max_amplification=1.5)
    stages = stages_of(plan)
    bars, at = [], 0.0
    numbers = range(len(stages))
    for kind, order in (("forward", numbers), ("backward", reversed(numbers))):
        for number in order:
            seconds = 0.75 * sum(
                layer.computes
                for layer in layers_of(plan)[stages[number].start : stages[number].stop]
            )
            for device in range(stages[number].num_devices):
                bars.append(Bar(device, kind, number, 0, at, at + seconds))
            at += seconds
    bars += [
        Bar(device, "all_reduce", 0, None, at, at + 0.002)
        for device in range(max(plan.num_devices))
    ]
    return BurstRecord(function, 12, plan, tuple(bars), at + 0.003, profile)


def background_record(rank: int = 0, function: str = "train_step") -> BackgroundRecord:
    got = BackgroundStats(64, "python other.py <fast>", 0.05, 0.031, 0.75, 2, 8.0, 200 + 100 * rank)
    return BackgroundRecord(function=function, rank=rank, **dataclasses.asdict(got))


def replicas_record() -> PipelineRecord:
    """Returns a pipeline of one stage of two ranks."""
    layers = LayerGraph.chain([0.01] * 2, [0.02] * 2, [1e3] * 2, [1e5])
    cluster = Cluster.from_bandwidth([[0, 1e9], [1e9, 0]])
    strategy = strategies.Spp(num_stages=1)
    plan = make_pipeline_plan(layers, cluster, strategy, num_microbatches=2)
    timeline = simulate_pipeline(layers, plan, cluster)
    bars = bars_of(plan, timeline)
    return PipelineRecord("step", 4, plan, layers, cluster, bars, timeline.iteration_seconds)


def given_record(plan: Plan, strategy: strategies.Strategy) -> PlanRecord:
    """Returns a user-provided plan without profile and model."""
    return PlanRecord("f", 1, "given", strategy, strategy.allowed_threads, TuningResult(plan))


def measured(record: PlanRecord, stretch: float = 1.0) -> MeasuredTimeline:
    """Returns a possible timeline of a step under the plan: the predicted one, stretched."""
    from tf_libra.simulation import simulate

    assert record.conclusion.profile is not None and record.conclusion.cost_model is not None
    timeline = simulate(record.conclusion.profile, record.plan, record.conclusion.cost_model)
    groups = tuple(
        MeasuredGroup(
            index,
            group.num_threads,
            sum(record.plan.num_bytes[group.start : group.stop]),
            span.ready_seconds * stretch,
            span.start_seconds * stretch,
            span.end_seconds * stretch,
        )
        for index, (group, span) in enumerate(zip(record.plan.groups, timeline.groups, strict=True))
    )
    return MeasuredTimeline(
        groups, timeline.computation_end_seconds * stretch, timeline.backward_seconds * stretch
    )


STRETCHES = (1.02, 1.1, 1.07, 0.99, 1.2)


def traced_step(record: PlanRecord, stretch: float = 1.0, step: int = 0) -> StepRecord:
    """Returns rank 0's record of a step with the times of `measured`."""
    start = 1_700_000_000_000_000_000 + 10**9 * step
    timeline = measured(record, stretch)

    def at(seconds: float) -> int:
        return start + round(seconds * 1e9)

    spans = tuple(
        AllReduceSpan(
            group.group,
            group.num_threads,
            group.num_bytes,
            at(group.ready_seconds),
            at(group.start_seconds),
            at(group.start_seconds),
            at(group.end_seconds),
        )
        for group in timeline.groups
    )
    # A group's last tensor is ready with it, those before are not late.
    produced = [
        at(timing.ready_seconds)
        for timing, group in zip(timeline.groups, record.plan.groups, strict=True)
        for _ in range(group.start, group.stop)
    ]
    produced[-1] = at(timeline.compute_seconds)
    return StepRecord(
        record.function,
        record.plan.fingerprint,
        0,
        record.step + step,
        start - 10**7,
        start + 10**8,
        spans,
        backward_start_ns=start,
        produced_ns=tuple(produced),
    )


def traced_steps(record: PlanRecord) -> list[StepRecord]:
    return [traced_step(record, stretch, 1 + i) for i, stretch in enumerate(STRETCHES)]


def timeline_record(record: PlanRecord) -> TimelineRecord:
    found = TimelineRecord.from_steps(record.plan, traced_steps(record))
    assert found is not None
    return found


def timeline_document(record: TimelineRecord) -> str:
    """Returns the timeline record of earlier versions."""
    marks = {"format": "tf-libra timeline record", "version": 1}
    return json.dumps(marks | dataclasses.asdict(record))


def step_record(record: PlanRecord, rank: int = 0) -> StepRecord:
    start = 1_700_000_000_000_000_000
    spans = tuple(
        AllReduceSpan(
            i, g.num_threads, 1000, start + i, start + 2 * i, start + 3 * i, start + 9 * i
        )
        for i, g in enumerate(record.plan.groups)
    )
    return StepRecord(
        record.function,
        record.plan.fingerprint,
        rank,
        record.step,
        start,
        start + 50_000_000,
        spans,
        backward_start_ns=start + 10,
        produced_ns=tuple(start + 10 * i for i in range(len(record.plan.tensor_names))),
    )
