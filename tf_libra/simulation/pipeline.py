"""The timeline of a pipeline plan: its computation, transfers and all-reduces as tasks."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tf_libra import checks
from tf_libra.model.cluster import Cluster
from tf_libra.model.layers import LayerGraph
from tf_libra.model.pipeline import PipelinePlan, PipelineStage
from tf_libra.simulation.tasks import Task, simulate_tasks

_AT_THE_END = ("all_reduce", "update")


@dataclass(frozen=True)
class PipelineBlock:
    """A block of an iteration; seconds since the iteration's start.

    Attributes:
      kind: "forward", "backward", "forward_transfer", "backward_transfer", "all_reduce" or, where
        layers say what it takes, "update".
      stage: index of the stage that computes, sends or reduces: a forward transfer goes from it to
        the next, a backward transfer to the one before.
      microbatch: its index; None: an all-reduce or update.
      start_seconds: when it begins.
      stop_seconds: when it ends.
    """

    kind: str
    stage: int
    microbatch: int | None
    start_seconds: float
    stop_seconds: float

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.stop_seconds - self.start_seconds


@dataclass(frozen=True)
class PipelineTimeline:
    """What `simulate_pipeline` says of a plan.

    Attributes:
      blocks: in order of their start.
    """

    blocks: tuple[PipelineBlock, ...]

    @property
    def iteration_seconds(self) -> float:
        """SPP, Eq. 2: when stage 0 has ended its last backward and every all-reduce is done.

        And every update, of which the paper does not speak.
        """
        return max(
            block.stop_seconds
            for block in self.blocks
            if block.kind in _AT_THE_END or (block.kind == "backward" and block.stage == 0)
        )


def simulate_pipeline(layers: LayerGraph, plan: PipelinePlan, cluster: Cluster) -> PipelineTimeline:
    """Returns the timeline of one iteration under a plan (SPP, section III-B; Algorithm 1, 9-25).

    Stages keep the plan's orders and start a block as soon as it is ready. Links are full duplex:
    between two neighbouring stages is one channel per direction, which carries one transfer at a
    time, in order of readiness. A stage's all-reduce starts with the end of its last backward, its
    update when that is done.

    Args:
      layers: what a microbatch costs; may be another measurement than the plan was made for.
      plan: stages and orders.
      cluster: its devices' rates.

    Raises:
      ValueError: the plan is of other layers or of devices that the cluster lacks, devices that
        must talk have no link, the orders of the stages wait for each other, or times are so large
        that their sum is no number.
    """
    checks.instance("layers", layers, LayerGraph)
    checks.instance("plan", plan, PipelinePlan)
    checks.instance("cluster", cluster, Cluster)
    if plan.layer_names != layers.names:
        raise ValueError(
            f"plan must be of the {len(layers.layers)} layers given (same names in the same "
            f"order), got one of {len(plan.layer_names)} layers"
        )
    used = max(device for stage in plan.stages for device in stage.devices)
    if used >= cluster.num_devices:
        raise ValueError(
            f"plan must use devices from 0 to {cluster.num_devices - 1}, those of the cluster, "
            f"got {used}"
        )
    durations = _durations(layers, plan, cluster)
    _check_finite(max(itertools.chain(*durations.values())))
    labels = _labels(plan, durations["update"])
    index_of = {label: index for index, label in enumerate(labels)}
    # What runs before a block on its stage: the plan's order keeps a stage's blocks apart.
    before: dict[_Label, int] = {}
    for stage_index, stage in enumerate(plan.stages):
        for earlier, later in itertools.pairwise(stage.order):
            before[later[0], stage_index, later[1]] = index_of[earlier[0], stage_index, earlier[1]]
    tasks = []
    for label in labels:
        kind, stage_index, _ = label
        after = [index_of[source] for source in _sources(plan, label)]
        if label in before:
            after.append(before[label])
        # One channel per direction: a stage sends forward on one and backward on the other.
        resources = ((kind, stage_index),) if kind.endswith("_transfer") else ()
        tasks.append(Task(kind, durations[kind][stage_index], resources, tuple(after)))
    spans = simulate_tasks(tasks)
    blocks = [
        PipelineBlock(*label, span.start_seconds, span.stop_seconds)
        for label, span in zip(labels, spans, strict=True)
    ]
    blocks.sort(key=lambda block: (block.start_seconds, block.stop_seconds))
    timeline = PipelineTimeline(tuple(blocks))
    _check_finite(timeline.iteration_seconds)
    return timeline


def _check_finite(seconds: float) -> None:
    if not math.isfinite(seconds):
        raise ValueError(
            "the seconds of layers, and what their bytes take by bytes_per_second of cluster, must"
            f" add up to a finite number, got {seconds}"
        )


def stage_seconds(layers: LayerGraph, stage: PipelineStage) -> tuple[float, float]:
    """Forward and backward computation of one microbatch on a stage (SPP, section III-B)."""
    forward, backward = layers.replica_seconds(len(stage.devices))
    layers_of_stage = slice(stage.start, stage.stop)
    return float(forward[layers_of_stage].sum()), float(backward[layers_of_stage].sum())


def update_seconds(layers: LayerGraph, stage: PipelineStage) -> float:
    """What each replica of a stage takes to update its parameters."""
    return float(layers.update_seconds[stage.start : stage.stop].sum())


def transfer_seconds(
    layers: LayerGraph, cluster: Cluster, stage: PipelineStage, following: PipelineStage
) -> float:
    """c^f = c^b, one microbatch's transfer between two neighbouring stages, either way.

    Each of the m times n links carries an equal part; the slowest decides. No bytes take no time.

    Raises:
      ValueError: there is something to send, and two of the devices have no link.
    """
    num_bytes = layers.activation_bytes[stage.stop - 1]
    rate = cluster.rate_between(stage.devices, following.devices)
    links = len(stage.devices) * len(following.devices)
    return _seconds(num_bytes, links * rate, "stages", stage.devices, following.devices)


def all_reduce_seconds(layers: LayerGraph, cluster: Cluster, stage: PipelineStage) -> float:
    """A_s, the ring all-reduce of a stage's gradients among its k replicas (SPP, Eq. 1).

    Raises:
      ValueError: there are gradients to reduce, and two of the devices have no link.
    """
    replicas = len(stage.devices)
    if replicas == 1:
        return 0.0
    num_bytes = float(layers.parameter_bytes[stage.start : stage.stop].sum())
    sent = 2 * (replicas - 1) * num_bytes / replicas
    return _seconds(sent, cluster.rate_among(stage.devices), "replicas", stage.devices)


def _seconds(num_bytes: float, rate: float, who: str, *devices: tuple[int, ...]) -> float:
    if num_bytes == 0:
        return 0.0
    if rate == 0:
        shown = " and ".join(str(list(numbers)) for numbers in devices)
        raise ValueError(
            f"bytes_per_second of cluster must be positive between all devices of {who} that talk "
            f"to each other, got 0 between two of {shown}"
        )
    return num_bytes / rate


_Label = tuple[str, int, int | None]
"""Kind, stage and microbatch of a block."""


def _durations(layers: LayerGraph, plan: PipelinePlan, cluster: Cluster) -> dict[str, list[float]]:
    """Seconds of a block, by kind and stage; a kind that a stage lacks has 0."""
    stages = plan.stages
    computation = [stage_seconds(layers, stage) for stage in stages]
    channels = [transfer_seconds(layers, cluster, *pair) for pair in itertools.pairwise(stages)]
    return {
        "forward": [forward for forward, _ in computation],
        "backward": [backward for _, backward in computation],
        "forward_transfer": [*channels, 0.0],
        "backward_transfer": [0.0, *channels],
        "all_reduce": [all_reduce_seconds(layers, cluster, stage) for stage in stages],
        "update": [update_seconds(layers, stage) for stage in stages],
    }


def _labels(plan: PipelinePlan, updates: Sequence[float]) -> list[_Label]:
    """All blocks of a plan; of blocks that are ready together, the first goes first.

    Args:
        plan: the stages.
        updates: what each takes to update; none where that is nothing.
    """
    last = len(plan.stages) - 1
    labels: list[_Label] = []
    for index, stage in enumerate(plan.stages):
        labels += [(kind, index, microbatch) for kind, microbatch in stage.order]
        # Of results at one moment, as of blocks that take no time, the one computed first is sent
        # first.
        for kind, microbatch in stage.order:
            sends = index < last if kind == "forward" else index > 0
            if sends:
                labels.append((f"{kind}_transfer", index, microbatch))
        if len(stage.devices) > 1:
            labels.append(("all_reduce", index, None))
        if updates[index] > 0:
            labels.append(("update", index, None))
    return labels


def _sources(plan: PipelinePlan, label: _Label) -> list[_Label]:
    """What a block needs, beside its turn (the dependencies of SPP, section III-B)."""
    kind, stage, microbatch = label
    last = len(plan.stages) - 1
    match kind:
        case "forward":
            return [("forward_transfer", stage - 1, microbatch)] if stage > 0 else []
        case "backward" if stage < last:
            return [("backward_transfer", stage + 1, microbatch)]
        case "backward" | "forward_transfer":
            return [("forward", stage, microbatch)]
        case "backward_transfer":
            return [("backward", stage, microbatch)]
        case "update" if len(plan.stages[stage].devices) > 1:
            return [("all_reduce", stage, None)]
        case _:
            # The last block of a stage is a backward, and by then all others are done.
            return [(plan.stages[stage].order[-1][0], stage, plan.stages[stage].order[-1][1])]
