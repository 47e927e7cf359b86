"""What each device does during an iteration under a burst plan, simulated or measured."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tf_libra.model.burst import BurstPlan
from tf_libra.simulation.pipeline_gantt import Bar


@dataclass(frozen=True)
class Stage:
    """Consecutive layers on the same devices.

    Attributes:
        start: the first layer.
        stop: behind the last.
        first_device: number of the first device.
        num_devices: how many there are.
    """

    start: int
    stop: int
    first_device: int
    num_devices: int


@dataclass(frozen=True)
class Layer:
    """What a layer takes, as planned, in seconds.

    Attributes:
        name: of the layer.
        first_device: number of its first device.
        num_devices: how many it has.
        comes_in: by transitions.
        computes: forward and backward.
        all_reduce: of its gradients.
        amplification: see `BurstPlan`.
    """

    name: str
    first_device: int
    num_devices: int
    comes_in: float
    computes: float
    all_reduce: float
    amplification: float


@dataclass(frozen=True)
class Busy:
    """What a device does for a while; seconds since the iteration's start.

    Attributes:
        device: its number.
        kind: "transition", "compute" or "all_reduce" of a plan; "forward", "backward", "all_reduce"
            or "update" where it was measured.
        layers: of which it is, in words.
        start_seconds: when it begins.
        stop_seconds: when it ends.
    """

    device: int
    kind: str
    layers: str
    start_seconds: float
    stop_seconds: float


@dataclass(frozen=True)
class Picture:
    """What all devices do in an iteration.

    Attributes:
        title: "predicted" or "measured".
        bars: what they do.
        seconds: how long the iteration takes.
        idle_seconds: by device, for how much of it there is nothing to do.
    """

    title: str
    bars: tuple[Busy, ...]
    seconds: float
    idle_seconds: tuple[float, ...]


def stages_of(plan: BurstPlan) -> tuple[Stage, ...]:
    """The layers of a plan, those that follow each other on the same devices together."""
    stages, start = [], 0
    places = zip(plan.first_devices, plan.num_devices, strict=True)
    for (first, count), layers in itertools.groupby(places):
        stop = start + len(list(layers))
        stages.append(Stage(start, stop, first, count))
        start = stop
    return tuple(stages)


def named(plan: BurstPlan, stage: Stage) -> str:
    """The layers of a stage, by the names of the first and the last."""
    first, last = plan.layer_names[stage.start], plan.layer_names[stage.stop - 1]
    return first if stage.stop == stage.start + 1 else f"{first} to {last}"


def layers_of(plan: BurstPlan) -> tuple[Layer, ...]:
    """What each layer takes."""
    found: dict[str, list[float]] = {
        kind: [0.0] * len(plan.layer_names) for kind in ("transition", "compute", "synchronize")
    }
    for span in plan.spans:
        found[span.kind][span.layer] += span.seconds
    return tuple(
        Layer(*one)
        for one in zip(
            plan.layer_names, plan.first_devices, plan.num_devices, *found.values(),
            plan.amplification, strict=True,
        )
    )  # fmt: skip


def pictures(
    plan: BurstPlan, measured: tuple[Sequence[Bar], float] | None = None
) -> tuple[Picture, ...]:
    """What was measured, and below it what is predicted.

    Args:
        plan: the bursts.
        measured: what devices did, by numbers of `stages_of`, and how long the iteration took; None
            before it is known.
    """
    planned = tuple(
        Busy(
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
    predicted = Picture("predicted", planned, plan.iteration_seconds, plan.idle_seconds)
    if measured is None:
        return (predicted,)
    given, seconds = measured
    stages = stages_of(plan)
    bars = tuple(
        Busy(one.device, one.kind, _of(plan, stages, one), one.start_seconds, one.stop_seconds)
        for one in given
    )
    last = max((one.device for one in bars), default=0)
    devices = range(max(plan.device_counts[-1], last + 1))
    idle = tuple(
        seconds - _covered((one for one in bars if one.device == device), seconds)
        for device in devices
    )
    return Picture("measured", bars, seconds, idle), predicted


def _of(plan: BurstPlan, stages: Sequence[Stage], bar: Bar) -> str:
    """What all ranks of a rank's layers all-reduce, or update, is of no layer alone."""
    if bar.microbatch is None or bar.stage >= len(stages):
        return "its layers"
    return named(plan, stages[bar.stage])


def _covered(bars: Iterable[Busy], end_seconds: float) -> float:
    """For how long there is at least one of them, up to the end."""
    total, clock = 0.0, 0.0
    for one in sorted(bars, key=lambda one: one.start_seconds):
        stop = min(one.stop_seconds, end_seconds)
        total += max(stop - max(one.start_seconds, clock), 0.0)
        clock = max(clock, stop)
    return total
