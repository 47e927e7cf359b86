"""Burst plan: device count, devices and schedule of each layer (DeepPool, section 4)."""

import itertools
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from tf_libra.internal import validation
from tf_libra.specs.scaling_profile import check_device_counts

_FORMAT = "tf-libra burst plan"
_VERSION = 1
KINDS = ("transition", "compute", "synchronize")


@dataclass(frozen=True)
class BurstSpan:
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

    kind: str
    layer: int
    source: int | None
    lane: int
    start_seconds: float
    stop_seconds: float
    after: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if (self.source is None) == (self.kind == "transition"):
            raise ValueError(f"source must be a layer for a transition alone, got {self.source}")
        start = validation.real("start_seconds", self.start_seconds, minimum=0)
        frozen: dict[str, Any] = {
            "layer": validation.integer("layer", self.layer),
            "lane": validation.integer("lane", self.lane),
            "start_seconds": start,
            "stop_seconds": validation.real("stop_seconds", self.stop_seconds, minimum=start),
            "after": validation.integers("after", self.after),
        }
        if self.source is not None:
            frozen["source"] = validation.integer("source", self.source)
        for field, value in frozen.items():
            object.__setattr__(self, field, value)

    @property
    def seconds(self) -> float:
        """Length of the span."""
        return self.stop_seconds - self.start_seconds


@dataclass(frozen=True)
class BurstPlan:
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

    layer_names: tuple[str, ...]
    device_counts: tuple[int, ...]
    num_devices: tuple[int, ...]
    first_devices: tuple[int, ...]
    lanes: tuple[int, ...]
    amplification: tuple[float, ...]
    iteration_seconds: float
    device_seconds: float
    spans: tuple[BurstSpan, ...]
    strategy: str
    max_amplification: float | None
    profile_fingerprint: str
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = validation.names("layer_names", self.layer_names)
        if not names:
            raise ValueError("layer_names must hold at least one layer, got none")
        counts = check_device_counts(self.device_counts)
        columns: dict[str, tuple[Any, ...]] = {
            "num_devices": validation.integers("num_devices", self.num_devices, 1),
            "first_devices": validation.integers("first_devices", self.first_devices),
            "lanes": validation.integers("lanes", self.lanes),
            "amplification": tuple(
                _amplification(a) for a in validation.sequence("amplification", self.amplification)
            ),
        }
        for field, column in columns.items():
            validation.same_length(field, column, "layer", len(names))
        for count, first in zip(columns["num_devices"], columns["first_devices"], strict=True):
            if count not in counts:
                raise ValueError(f"num_devices must be of {counts}, got {count}")
            if first + count > counts[-1]:
                raise ValueError(
                    f"first_devices must leave {count} of {counts[-1]} devices, got {first}"
                )
        seconds = validation.real("iteration_seconds", self.iteration_seconds, minimum=0)
        spans = validation.sequence("spans", self.spans)
        for index, span in enumerate(spans):
            if not isinstance(span, BurstSpan):
                raise ValueError(f"spans[{index}] must be a BurstSpan, got {span!r}")
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
        frozen = columns | {
            "layer_names": names,
            "device_counts": counts,
            "iteration_seconds": seconds,
            "device_seconds": validation.real("device_seconds", self.device_seconds, minimum=0),
            "spans": spans,
            "strategy": validation.text("strategy", self.strategy),
            "profile_fingerprint": validation.text("profile_fingerprint", self.profile_fingerprint),
            "notes": validation.texts("notes", self.notes),
        }
        if self.max_amplification is not None:
            frozen["max_amplification"] = validation.real(
                "max_amplification", self.max_amplification, minimum=1
            )
        for field, value in frozen.items():
            object.__setattr__(self, field, value)

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

    @cached_property
    def fingerprint(self) -> str:
        """Hexadecimal SHA-256 of the executed schedule: layers, devices, lanes and order.

        Times and notes are excluded.
        """
        executed = {
            "layer_names": self.layer_names,
            "num_devices": self.num_devices,
            "first_devices": self.first_devices,
            "lanes": self.lanes,
            "order": [[span.kind, span.layer, span.source, span.after] for span in self.spans],
        }
        return validation.digest(_FORMAT, _VERSION, executed)

    def to_json(self) -> str:
        """Return JSON text with the fingerprint, which `from_json` reads back unchanged."""
        value = asdict(self)
        value["amplification"] = [_finite(a) for a in self.amplification]
        header = {"format": _FORMAT, "version": _VERSION, "fingerprint": self.fingerprint}
        return json.dumps(header | value, indent=1)

    @classmethod
    def from_json(cls, document: str) -> "BurstPlan":
        """Read a plan from JSON text.

        Raises:
          ValueError: malformed, too large, another version, a field out of its range, or a
            fingerprint that does not match the content.
        """
        fields = set(cls.__dataclass_fields__)
        value = validation.keys(
            _FORMAT,
            validation.json_document(_FORMAT, _VERSION, document),
            required=({"fingerprint"} | fields) - {"notes"},
            optional=("notes",),
        )
        fingerprint = value.pop("fingerprint")
        value["spans"] = validation.items("spans", value["spans"], BurstSpan)
        plan = cls(**value)
        validation.same_fingerprint(fingerprint, plan.fingerprint)
        return plan


def _amplification(value: Any) -> float:
    if value is None or value == float("inf"):
        return float("inf")
    return validation.real("amplification", value, minimum=0)


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value
