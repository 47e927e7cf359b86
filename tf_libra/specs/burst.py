"""Burst plan: device count, devices and schedule of each layer (DeepPool, section 4)."""

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, get_args

from tf_libra.internal import validation
from tf_libra.internal.codec import FingerprintedDocument
from tf_libra.internal.values import (
    AtLeastOne,
    Counts,
    Names,
    Natural,
    Naturals,
    NonNegative,
    Value,
)
from tf_libra.specs.scaling_profile import DeviceCounts

SpanKind = Literal["transition", "compute", "synchronize"]
KINDS = get_args(SpanKind)
_INFINITY = float("inf")


def _amplifications(field: str, value: Any) -> tuple[float, ...]:
    return tuple(
        _INFINITY
        if amplification in (None, _INFINITY)
        else validation.real(field, amplification, minimum=0)
        for amplification in validation.sequence(field, value)
    )


@dataclass(frozen=True)
class BurstSpan(Value):
    """One activity of a layer's devices; seconds since the iteration's start.

    Attributes:
      kind: "transition" (transfer of a layer's input and of its gradient), "compute" (forward and
        backward) or "synchronize" (all-reduce of its gradients).
      layer: the layer; for a transition, its target.
      source: source layer of a transition; otherwise None.
      lane: lane whose devices run the span.
      start_seconds: begin.
      stop_seconds: end.
      after: indices of the plan's spans that end before this one begins.

    Raises:
      ValueError: an unknown kind, a source for another kind than a transition, a transition without
        source, or a stop before the start.
    """

    kind: SpanKind
    layer: Natural
    source: Natural | None
    lane: Natural
    start_seconds: NonNegative
    stop_seconds: float
    after: Naturals = ()

    def _validate(self) -> None:
        if (self.source is None) == (self.kind == "transition"):
            raise ValueError(f"source must be a layer for a transition alone, got {self.source}")
        validation.real("stop_seconds", self.stop_seconds, minimum=self.start_seconds)

    @property
    def seconds(self) -> float:
        """Length of the span."""
        return self.stop_seconds - self.start_seconds


@dataclass(frozen=True)
class BurstPlan(FingerprintedDocument):
    """Device counts and schedule of the layers of an iteration.

    Layer i runs on `num_devices[i]` devices from `first_devices[i]` on; without parallel branches
    these are always the first devices. A parallel branch has its own lane: devices that no
    concurrent lane uses.

    Attributes:
      layer_names: names of the L layers.
      device_counts: allowed device counts; the last is the cluster's size.
      num_devices: device count of each layer, shape [L].
      first_devices: first device of each layer, shape [L].
      lanes: lane of each layer, shape [L]; 0 is the model's trunk.
      amplification: amplification of each layer, shape [L]: device seconds (incoming transitions,
        computation, synchronization) over the layer's seconds on one device (DeepPool 4.2). 1 if
        both are 0, infinite if only the latter is (null in JSON).
      iteration_seconds: length of one iteration.
      device_seconds: sum of the layers' device seconds.
      spans: the schedule; each span follows all spans that it waits for.
      strategy: name of the strategy that made the plan.
      max_amplification: limit on amplification; None: no limit.
      profile_fingerprint: fingerprint of the scaling profile.
      notes: remarks of the planner for the reader.

    Raises:
      ValueError: columns of different lengths, a field out of its range, or a span that ends after
        the iteration.
    """

    layer_names: Names
    device_counts: DeviceCounts
    num_devices: Counts
    first_devices: Naturals
    lanes: Naturals
    amplification: Annotated[tuple[float, ...], _amplifications]
    iteration_seconds: NonNegative
    device_seconds: NonNegative
    spans: tuple[BurstSpan, ...]
    strategy: str
    max_amplification: AtLeastOne | None
    profile_fingerprint: str
    notes: tuple[str, ...] = ()

    FORMAT: ClassVar = "tf-libra burst plan"
    INDENT: ClassVar = 1

    def _validate(self) -> None:
        names, counts = self.layer_names, self.device_counts
        if not names:
            raise ValueError("layer_names must hold at least one layer, got none")
        for field in ("num_devices", "first_devices", "lanes", "amplification"):
            validation.same_length(field, getattr(self, field), "layer", len(names))
        for count, first in zip(self.num_devices, self.first_devices, strict=True):
            if count not in counts:
                raise ValueError(f"num_devices must be of {counts}, got {count}")
            if first + count > counts[-1]:
                raise ValueError(
                    f"first_devices must leave {count} of {counts[-1]} devices, got {first}"
                )
        seconds = self.iteration_seconds
        for index, span in enumerate(self.spans):
            if max(span.layer, span.source or 0) >= len(names):
                raise ValueError(
                    f"spans[{index}] must be of the {len(names)} layers, got {span.layer} from "
                    f"{span.source}"
                )
            if span.stop_seconds > seconds:
                raise ValueError(
                    f"spans[{index}].stop_seconds must be at most iteration_seconds, {seconds}, got"
                    f" {span.stop_seconds}"
                )
            if max(span.after, default=-1) >= index:
                raise ValueError(
                    f"spans[{index}].after must be of the spans before it, got {span.after}"
                )

    @property
    def transition_seconds(self) -> tuple[float, ...]:
        """Seconds of incoming transitions of each layer, shape [L]."""
        total = [0.0] * len(self.layer_names)
        for span in self.spans:
            if span.kind == "transition":
                total[span.layer] += span.seconds
        return tuple(total)

    @cached_property
    def gaps(self) -> tuple[tuple[tuple[float, float], ...], ...]:
        """Idle intervals (start, stop) of each device of the cluster."""
        edges = sorted(
            {0, self.device_counts[-1]}
            | set(self.first_devices)
            | {f + n for f, n in zip(self.first_devices, self.num_devices, strict=True)}
        )
        gaps: list[tuple[tuple[float, float], ...]] = []
        # Devices between two edges have the same schedule.
        for low, high in itertools.pairwise(edges):
            idle, clock = [], 0.0
            for span in sorted(self.spans, key=lambda span: span.start_seconds):
                first = self.first_devices[span.layer]
                if not first <= low < first + self.num_devices[span.layer] or not span.seconds:
                    continue
                if span.start_seconds > clock:
                    idle.append((clock, span.start_seconds))
                clock = max(clock, span.stop_seconds)
            if self.iteration_seconds > clock:
                idle.append((clock, self.iteration_seconds))
            gaps += [tuple(idle)] * (high - low)
        return tuple(gaps)

    @property
    def idle_seconds(self) -> tuple[float, ...]:
        """Sum of each device's gaps."""
        return tuple(sum(stop - start for start, stop in device) for device in self.gaps)

    def _executed(self) -> dict[str, Any]:
        """Returns the executed schedule: layers, devices, lanes and order."""
        return {
            "layer_names": self.layer_names,
            "num_devices": self.num_devices,
            "first_devices": self.first_devices,
            "lanes": self.lanes,
            "order": [[span.kind, span.layer, span.source, span.after] for span in self.spans],
        }

    def _to_fields(self) -> dict[str, Any]:
        """Returns the fields as JSON values; infinite amplification is null."""
        amplification = [None if a == _INFINITY else a for a in self.amplification]
        return super()._to_fields() | {"amplification": amplification}
