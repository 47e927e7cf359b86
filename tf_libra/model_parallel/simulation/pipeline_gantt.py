"""Gantt charts of pipelines as text: device activity in an iteration, simulated or measured."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from tf_libra.internal import formatting, validation
from tf_libra.internal.values import Natural, NonNegative, Value, one_of
from tf_libra.model_parallel.simulation.pipeline import (
    PipelineTimeline,
    all_reduce_seconds,
    deferred_seconds,
    simulate_pipeline,
    stage_seconds,
    transfer_seconds,
    update_seconds,
)
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan

KINDS = ("step", "forward", "backward", "gradients", "all_reduce", "update")
COMPUTING = tuple(kind for kind in KINDS if kind != "all_reduce")
IDLE, GRADIENTS, ALL_REDUCE, UPDATE = ".", "*", "=", "+"
_SIGNS = {"gradients": GRADIENTS, "all_reduce": ALL_REDUCE, "update": UPDATE}
LEGEND = (
    "A: forward of microbatch 0, a: its backward; *: gradients; =: all-reduce; +: update; .: idle"
)
_LETTERS = 26
_REDUCED, _END = "the all-reduce of its stage", "the end of the iteration"


@dataclass(frozen=True)
class Bar(Value):
    """Activity of a device; seconds since the iteration's start.

    Attributes:
        device: number of the device.
        kind: "forward", "backward", "gradients" (of all microbatches), "all_reduce" or "update";
            "step" for all of a step that one device runs as a whole.
        stage: index of the stage.
        microbatch: index of the microbatch; None for kinds that follow all of them.
        start_seconds: begin.
        stop_seconds: end.

    Raises:
        ValueError: a field is out of its range.
    """

    device: Natural
    kind: Annotated[str, one_of(KINDS)]
    stage: Natural
    microbatch: Natural | None
    start_seconds: NonNegative
    stop_seconds: float

    def _validate(self) -> None:
        validation.real("stop_seconds", self.stop_seconds, minimum=self.start_seconds)

    @property
    def computes(self) -> bool:
        """True if the activity occupies the device."""
        return self.kind in COMPUTING


@dataclass(frozen=True)
class Bubble:
    """Interval in which a device computes nothing.

    Attributes:
        device: number of the device.
        start_seconds: begin.
        stop_seconds: end.
        why: event that the device waits for.
    """

    device: int
    start_seconds: float
    stop_seconds: float
    why: str

    @property
    def seconds(self) -> float:
        """Length of the interval."""
        return self.stop_seconds - self.start_seconds


@dataclass(frozen=True)
class PipelineGantt:
    """Activity of all devices in an iteration.

    Attributes:
        title: "predicted" or "measured".
        bars: activities of all devices.
        seconds: length of the iteration.
    """

    title: str
    bars: tuple[Bar, ...]
    seconds: float


@dataclass(frozen=True)
class Idle:
    """Idle time of a device in an iteration.

    Attributes:
        device: number of the device.
        share: idle share of the iteration.
        longest: longest bubble; None without one.
    """

    device: int
    share: float
    longest: Bubble | None


def pictures(
    layers: LayerGraph,
    plan: PipelinePlan,
    cluster: Cluster,
    measured: tuple[Iterable[Bar], float] | None = None,
) -> tuple[PipelineGantt, ...]:
    """Return the predicted activity and, if any, the measured one.

    Args:
        layers: layer graph of one microbatch.
        plan: the pipeline.
        cluster: cluster that the plan is made for.
        measured: activities of devices and the seconds of the iteration; None before a measurement.
    """
    timeline = simulate_pipeline(layers, plan, cluster)
    predicted = PipelineGantt("predicted", bars_of(plan, timeline), timeline.iteration_seconds)
    if measured is None:
        return (predicted,)
    return predicted, PipelineGantt("measured", tuple(measured[0]), measured[1])


def idle(plan: PipelinePlan, picture: PipelineGantt) -> tuple[Idle, ...]:
    """Return the idle time of each device with a stage, in the order of stages."""
    found = bubbles(picture.bars, len(plan.stages), picture.seconds)
    rows = []
    for device in (device for stage in plan.stages for device in stage.devices):
        own = [bubble for bubble in found if bubble.device == device]
        share = sum(bubble.seconds for bubble in own) / picture.seconds if picture.seconds else 0.0
        rows.append(Idle(device, share, own[0] if own else None))
    return tuple(rows)


def bars_of(plan: PipelinePlan, timeline: PipelineTimeline) -> tuple[Bar, ...]:
    """Return the activities of all devices in a simulated timeline; replicas run in parallel."""
    return tuple(
        Bar(
            device, block.kind, block.stage, block.microbatch, block.start_seconds,
            block.stop_seconds,
        )
        for block in timeline.blocks
        for device in plan.stages[block.stage].devices
        if not block.kind.endswith("_transfer")
    )  # fmt: skip


def chart(
    bars: Iterable[Bar], devices: Sequence[int], end_seconds: float, width: int
) -> dict[int, str]:
    """Return a line of `width` characters per device, from the iteration's start to its end.

    A character shows the activity that takes most of its time, or idle time. Computation takes
    precedence over a concurrent all-reduce.
    """
    known = list(bars)
    return {
        device: "".join(
            _character(
                [bar for bar in known if bar.device == device],
                end_seconds * position / width,
                end_seconds * (position + 1) / width,
            )
            for position in range(width)
        )
        for device in devices
    }


def _character(bars: Sequence[Bar], start: float, stop: float) -> str:
    def within(bar: Bar) -> float:
        return max(0.0, min(bar.stop_seconds, stop) - max(bar.start_seconds, start))

    computing = [bar for bar in bars if bar.computes]
    for some in (computing, bars):
        if some and sum(map(within, some)) >= (stop - start) / 2 > 0:
            return _letter(max(some, key=within))
    return IDLE


def _letter(bar: Bar) -> str:
    if bar.microbatch is None:
        return _SIGNS[bar.kind]
    first = "A" if bar.kind == "forward" else "a"
    return chr(ord(first) + bar.microbatch % _LETTERS)


def bubbles(bars: Iterable[Bar], num_stages: int, end_seconds: float) -> list[Bubble]:
    """Return the idle intervals of all devices that compute, the longest first.

    Args:
        bars: activities of devices.
        num_stages: number of stages.
        end_seconds: end of the iteration.
    """
    found = []
    known = list(bars)
    computing = [bar for bar in known if bar.computes]
    reducing = {bar.device for bar in known if not bar.computes}
    for device in sorted({bar.device for bar in computing}):
        at = 0.0
        own = sorted(
            (bar for bar in computing if bar.device == device), key=lambda bar: bar.start_seconds
        )
        for bar in own:
            why = _awaited(bar, num_stages, reduces=device in reducing)
            found.append(Bubble(device, at, bar.start_seconds, why))
            at = max(at, bar.stop_seconds)
        updates = any(bar.kind == "update" for bar in own)
        last = _END if updates or device not in reducing else _REDUCED
        found.append(Bubble(device, at, end_seconds, last))
    found = [bubble for bubble in found if bubble.seconds > 0]
    return sorted(found, key=lambda bubble: (-bubble.seconds, bubble.device, bubble.start_seconds))


def _awaited(bar: Bar, num_stages: int, reduces: bool) -> str:
    """Describe the event that a computation waits for."""
    if bar.kind == "update":
        return _REDUCED if reduces else "what the step returns"
    if bar.kind == "gradients":
        return "nothing, before the gradients of all microbatches"
    if bar.kind == "forward":
        if bar.stage == 0:
            return f"samples of microbatch {bar.microbatch}"
        return f"forward of microbatch {bar.microbatch} by stage {bar.stage - 1}"
    if bar.stage == num_stages - 1:
        return f"nothing, before backward of microbatch {bar.microbatch}"
    return f"backward of microbatch {bar.microbatch} by stage {bar.stage + 1}"


def bottleneck(layers: LayerGraph, plan: PipelinePlan, cluster: Cluster) -> str:
    """Describe the bottleneck of an iteration in one sentence.

    The bottleneck is the stage, the channel or the all-reduce with the longest busy time per
    iteration (SPP, section III-B). The two directions of a channel count separately.
    """
    count = plan.num_microbatches
    loads: list[tuple[float, str]] = []
    for number, stage in enumerate(plan.stages):
        each = sum(stage_seconds(layers, stage))
        loads.append(
            (
                count * each,
                f"stage {number}, {layers_of(plan, number)}, which computes {formatting.time(each)}"
                " for"
                f" each of {count} microbatches",
            )
        )
    for number, (stage, following) in enumerate(itertools.pairwise(plan.stages)):
        each = transfer_seconds(layers, cluster, stage, following)
        num_bytes = layers.activation_bytes[stage.stop - 1]
        loads.append(
            (
                count * each,
                f"the channel between stages {number} and {number + 1}, which takes"
                f" {formatting.time(each)} for the {formatting.size(num_bytes)} of each of {count}"
                " microbatches, each way",
            )
        )
    for number, stage in enumerate(plan.stages):
        num_bytes = float(layers.parameter_bytes[stage.start : stage.stop].sum())
        loads.append(
            (
                all_reduce_seconds(layers, cluster, stage),
                f"the all-reduce of stage {number}, {formatting.size(num_bytes)} among devices"
                f" {', '.join(map(str, stage.devices))}",
            )
        )
        loads.append((deferred_seconds(layers, stage), f"the gradients of stage {number}"))
        loads.append((update_seconds(layers, stage), f"the update of stage {number}"))
    seconds, what = max(loads, key=lambda load: load[0])
    prediction = (
        "" if plan.predicted_seconds is None else f" of {formatting.time(plan.predicted_seconds)}"
    )
    return f"the bottleneck is {what}: {formatting.time(seconds)}{prediction}"


def layers_of(plan: PipelinePlan, stage: int) -> str:
    """Format the layers of a stage by the names of the first and the last."""
    span = plan.stages[stage]
    first, last = plan.layer_names[span.start], plan.layer_names[span.stop - 1]
    return first if first == last else f"{first} to {last}"
