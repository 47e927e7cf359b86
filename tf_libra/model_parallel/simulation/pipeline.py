"""Simulation of a pipeline plan, with computation, transfers and all-reduces as tasks."""

import itertools
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from tf_libra.internal import validation
from tf_libra.simulation.event_simulator import Task, simulate_tasks
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan, PipelineStage

_AT_THE_END = ("gradients", "all_reduce", "update")


@dataclass(frozen=True)
class PipelineBlock:
    """Block of an iteration; seconds since the iteration's start.

    Attributes:
      kind: "forward", "backward", "forward_transfer", "backward_transfer", "all_reduce" or, if the
        layers have such times, "gradients" (deferred ones) or "update".
      stage: index of the stage that computes, sends or reduces. A forward transfer goes to the next
        stage, a backward transfer to the previous one.
      microbatch: index of the microbatch; None for an all-reduce, gradients or an update.
      start_seconds: begin.
      stop_seconds: end.
    """

    kind: str
    stage: int
    microbatch: int | None
    start_seconds: float
    stop_seconds: float

    @property
    def seconds(self) -> float:
        """Length of the block."""
        return self.stop_seconds - self.start_seconds


@dataclass(frozen=True)
class PipelineTimeline:
    """Simulated timeline of a pipeline plan.

    Attributes:
      blocks: all blocks by start time.
    """

    blocks: tuple[PipelineBlock, ...]

    @property
    def iteration_seconds(self) -> float:
        """End of stage 0's last backward, of every all-reduce and of every update (SPP, Eq. 2).

        The paper has no updates.
        """
        return max(
            block.stop_seconds
            for block in self.blocks
            if block.kind in _AT_THE_END or (block.kind == "backward" and block.stage == 0)
        )


def simulate_pipeline(layers: LayerGraph, plan: PipelinePlan, cluster: Cluster) -> PipelineTimeline:
    """Return the timeline of one iteration under a plan (SPP, III-B; Algorithm 1, lines 9-25).

    Stages follow the plan's orders and start a block when it is ready. Links are full duplex: two
    neighbouring stages have one channel per direction, which carries one transfer at a time, in
    order of readiness. A stage computes its deferred gradients after its last backward, then starts
    its all-reduce, and its update after the all-reduce.

    Args:
      layers: cost of a microbatch; may differ from the measurement of planning.
      plan: stages and orders.
      cluster: rates between devices.

    Raises:
      ValueError: the plan has other layers or devices outside of the cluster, devices that exchange
        data have no link, the orders of the stages deadlock, or the sum of times is not finite.
    """
    validation.instance("layers", layers, LayerGraph)
    validation.instance("plan", plan, PipelinePlan)
    validation.instance("cluster", cluster, Cluster)
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
    labels = _labels(plan, durations)
    index_of = {label: index for index, label in enumerate(labels)}
    # Predecessor of each block on its stage: the plan's order serializes a stage's blocks.
    before: dict[_Label, int] = {}
    for stage_index, stage in enumerate(plan.stages):
        for earlier, later in itertools.pairwise(stage.order):
            before[later[0], stage_index, later[1]] = index_of[earlier[0], stage_index, earlier[1]]
    tasks = []
    for label in labels:
        kind, stage_index, _ = label
        after = [index_of[source] for source in _sources(plan, label, index_of)]
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


def least_iteration_seconds(layers: LayerGraph, plan: PipelinePlan, cluster: Cluster) -> float:
    """Return a lower bound of an iteration's seconds, which is cheaper than its simulation.

    A stage computes all microbatches after the first one has come. Then it computes deferred
    gradients, reduces and updates, and the gradients of the last microbatch go back to stage 0.
    Errors are those of `simulate_pipeline`.
    """
    least = arrival = return_trip = 0.0
    for index, stage in enumerate(plan.stages):
        forward, backward = stage_seconds(layers, stage)
        reduced = deferred_seconds(layers, stage) + update_seconds(layers, stage)
        reduced += all_reduce_seconds(layers, cluster, stage)
        busy = plan.num_microbatches * (forward + backward)
        least = max(least, arrival + busy + max(reduced, return_trip))
        if index + 1 < len(plan.stages):
            transfer = transfer_seconds(layers, cluster, stage, plan.stages[index + 1])
            arrival += forward + transfer
            return_trip += backward + transfer
    return least


def _check_finite(seconds: float) -> None:
    if not math.isfinite(seconds):
        raise ValueError(
            "the seconds of layers, and what their bytes take by bytes_per_second of cluster, must"
            f" add up to a finite number, got {seconds}"
        )


def stage_seconds(layers: LayerGraph, stage: PipelineStage) -> tuple[float, float]:
    """Return the forward and backward seconds of one microbatch on a stage (SPP, III-B)."""
    forward, backward = layers.replica_seconds(len(stage.devices))
    layers_of_stage = slice(stage.start, stage.stop)
    return float(forward[layers_of_stage].sum()), float(backward[layers_of_stage].sum())


def deferred_seconds(layers: LayerGraph, stage: PipelineStage) -> float:
    """Return the seconds that each replica of a stage takes for its deferred gradients."""
    return float(layers.deferred_seconds[stage.start : stage.stop].sum()) / len(stage.devices)


def update_seconds(layers: LayerGraph, stage: PipelineStage) -> float:
    """Return the seconds that each replica of a stage takes to update its parameters."""
    return float(layers.update_seconds[stage.start : stage.stop].sum())


def transfer_seconds(
    layers: LayerGraph, cluster: Cluster, stage: PipelineStage, following: PipelineStage
) -> float:
    """Return the seconds of one microbatch's transfer between two stages, c^f = c^b in SPP.

    Each of the m times n links carries an equal part, and the slowest link determines the time.
    0 bytes take no time.

    Raises:
      ValueError: there are bytes to send and two of the devices have no link.
    """
    num_bytes = layers.activation_bytes[stage.stop - 1]
    rate = cluster.rate_between(stage.devices, following.devices)
    links = len(stage.devices) * len(following.devices)
    return _seconds(num_bytes, links * rate, "stages", stage.devices, following.devices)


def all_reduce_seconds(layers: LayerGraph, cluster: Cluster, stage: PipelineStage) -> float:
    """Return the seconds A_s of a ring all-reduce of a stage's gradients (SPP, Eq. 1).

    Raises:
      ValueError: there are gradients to reduce and two of the devices have no link.
    """
    replicas = len(stage.devices)
    if replicas == 1:
        return 0.0
    num_bytes = float(layers.parameter_bytes[stage.start : stage.stop].sum())
    sent = 2 * (replicas - 1) * num_bytes / replicas
    return _seconds(sent, cluster.all_reduce_rate(stage.devices), "replicas", stage.devices)


def _seconds(num_bytes: float, rate: float, sender: str, *devices: tuple[int, ...]) -> float:
    if num_bytes == 0:
        return 0.0
    if rate == 0:
        shown = " and ".join(str(list(numbers)) for numbers in devices)
        raise ValueError(
            f"bytes_per_second of cluster must be positive between all devices of {sender} that"
            f" exchange data, got 0 between two of {shown}"
        )
    return num_bytes / rate


_Label = tuple[str, int, int | None]
"""Kind, stage and microbatch of a block."""


def _durations(layers: LayerGraph, plan: PipelinePlan, cluster: Cluster) -> dict[str, list[float]]:
    """Return the seconds of a block by kind and stage; 0 for a kind that a stage lacks."""
    stages = plan.stages
    computation = [stage_seconds(layers, stage) for stage in stages]
    channels = [transfer_seconds(layers, cluster, *pair) for pair in itertools.pairwise(stages)]
    return {
        "forward": [forward for forward, _ in computation],
        "backward": [backward for _, backward in computation],
        "forward_transfer": [*channels, 0.0],
        "backward_transfer": [0.0, *channels],
        "all_reduce": [all_reduce_seconds(layers, cluster, stage) for stage in stages],
        "gradients": [deferred_seconds(layers, stage) for stage in stages],
        "update": [update_seconds(layers, stage) for stage in stages],
    }


def _labels(plan: PipelinePlan, durations: Mapping[str, Sequence[float]]) -> list[_Label]:
    """Return all blocks of a plan in priority order for blocks that are ready together.

    Args:
        plan: the stages.
        durations: seconds of a block by kind and stage; stages without deferred gradients or an
            update have no such block.
    """
    last = len(plan.stages) - 1
    labels: list[_Label] = []
    for index, stage in enumerate(plan.stages):
        labels += [(kind, index, microbatch) for kind, microbatch in stage.order]
        # Results of the same moment, such as those of blocks without duration, are sent in the
        # order of computation.
        for kind, microbatch in stage.order:
            sends = index < last if kind == "forward" else index > 0
            if sends:
                labels.append((f"{kind}_transfer", index, microbatch))
        if durations["gradients"][index] > 0:
            labels.append(("gradients", index, None))
        if len(stage.devices) > 1:
            labels.append(("all_reduce", index, None))
        if durations["update"][index] > 0:
            labels.append(("update", index, None))
    return labels


def _sources(plan: PipelinePlan, label: _Label, known: Container[_Label]) -> list[_Label]:
    """Return the data dependencies of a block (SPP, section III-B).

    Args:
        plan: the stages.
        label: the block.
        known: all blocks.
    """
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
        case "update" if ("all_reduce", stage, None) in known:
            return [("all_reduce", stage, None)]
        case "update" | "all_reduce" if ("gradients", stage, None) in known:
            return [("gradients", stage, None)]
        case _:
            # The last block of a stage is a backward, and by then all others are done.
            return [(plan.stages[stage].order[-1][0], stage, plan.stages[stage].order[-1][1])]
