"""Gantt charts of burst plans: device activity during an iteration, simulated or measured."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tf_libra.model_parallel.simulation.pipeline_gantt import Bar
from tf_libra.specs.burst import BurstPlan


@dataclass(frozen=True)
class BurstStage:
    """Consecutive layers on the same devices.

    Attributes:
        start: index of the first layer.
        stop: index after the last layer.
        first_device: number of the first device.
        num_devices: number of devices.
    """

    start: int
    stop: int
    first_device: int
    num_devices: int


@dataclass(frozen=True)
class LayerTimes:
    """Planned seconds of one layer.

    Attributes:
        name: name of the layer.
        first_device: number of its first device.
        num_devices: number of its devices.
        comes_in: seconds of incoming transitions.
        computes: seconds of forward and backward computation.
        all_reduce: seconds of its gradients' all-reduce.
        amplification: as for `BurstPlan`.
    """

    name: str
    first_device: int
    num_devices: int
    comes_in: float
    computes: float
    all_reduce: float
    amplification: float


@dataclass(frozen=True)
class BusySpan:
    """Activity of a device; seconds since the iteration's start.

    Attributes:
        device: number of the device.
        kind: "transition", "compute" or "all_reduce" of a plan; "step" (a whole one), "forward",
            "backward", "all_reduce" or "update" of a measurement.
        layers: description of the layers.
        start_seconds: begin.
        stop_seconds: end.
    """

    device: int
    kind: str
    layers: str
    start_seconds: float
    stop_seconds: float


@dataclass(frozen=True)
class BurstGantt:
    """Activity of all devices in an iteration.

    Attributes:
        title: "predicted" or "measured".
        bars: activities of all devices.
        seconds: length of the iteration.
        idle_seconds: idle seconds of each device.
    """

    title: str
    bars: tuple[BusySpan, ...]
    seconds: float
    idle_seconds: tuple[float, ...]


def stages_of(plan: BurstPlan) -> tuple[BurstStage, ...]:
    """Group consecutive layers of a plan on the same devices."""
    stages, start = [], 0
    device_ranges = zip(plan.first_devices, plan.num_devices, strict=True)
    for (first, count), layers in itertools.groupby(device_ranges):
        stop = start + len(list(layers))
        stages.append(BurstStage(start, stop, first, count))
        start = stop
    return tuple(stages)


def named(plan: BurstPlan, stage: BurstStage) -> str:
    """Format the layers of a stage by the names of the first and the last."""
    first, last = plan.layer_names[stage.start], plan.layer_names[stage.stop - 1]
    return first if stage.stop == stage.start + 1 else f"{first} to {last}"


def layers_of(plan: BurstPlan) -> tuple[LayerTimes, ...]:
    """Return the planned seconds of each layer."""
    found: dict[str, list[float]] = {
        kind: [0.0] * len(plan.layer_names) for kind in ("transition", "compute", "synchronize")
    }
    for span in plan.spans:
        found[span.kind][span.layer] += span.seconds
    return tuple(
        LayerTimes(*fields)
        for fields in zip(
            plan.layer_names, plan.first_devices, plan.num_devices, *found.values(),
            plan.amplification, strict=True,
        )
    )  # fmt: skip


def pictures(
    plan: BurstPlan, measured: tuple[Sequence[Bar], float] | None = None
) -> tuple[BurstGantt, ...]:
    """Return the measured activity, if any, and the predicted one.

    Args:
        plan: the burst plan.
        measured: activities of devices, with stages numbered as in `stages_of`, and the seconds of
            the iteration; None before a measurement.
    """
    planned = tuple(
        BusySpan(
            plan.first_devices[span.layer] + device,
            "all_reduce" if span.kind == "synchronize" else span.kind,
            plan.layer_names[span.layer],
            span.start_seconds,
            span.stop_seconds,
        )
        for span in plan.spans
        if span.seconds
        for device in range(plan.num_devices[span.layer])
    )
    predicted = BurstGantt("predicted", planned, plan.iteration_seconds, plan.idle_seconds)
    if measured is None:
        return (predicted,)
    measured_bars, seconds = measured
    stages = stages_of(plan)
    bars = tuple(
        BusySpan(bar.device, bar.kind, _of(plan, stages, bar), bar.start_seconds, bar.stop_seconds)
        for bar in measured_bars
    )
    last = max((bar.device for bar in bars), default=0)
    devices = range(max(plan.device_counts[-1], last + 1))
    idle = tuple(
        seconds - _covered((bar for bar in bars if bar.device == device), seconds)
        for device in devices
    )
    return BurstGantt("measured", bars, seconds, idle), predicted


def _of(plan: BurstPlan, stages: Sequence[BurstStage], bar: Bar) -> str:
    """Describe the layers of a bar; an all-reduce or update spans all layers of a rank."""
    if bar.microbatch is None or bar.stage >= len(stages):
        return "its layers"
    return named(plan, stages[bar.stage])


def _covered(bars: Iterable[BusySpan], end_seconds: float) -> float:
    """Return the seconds covered by at least one bar, up to the end."""
    total, clock = 0.0, 0.0
    for bar in sorted(bars, key=lambda bar: bar.start_seconds):
        stop = min(bar.stop_seconds, end_seconds)
        total += max(stop - max(bar.start_seconds, clock), 0.0)
        clock = max(clock, stop)
    return total
