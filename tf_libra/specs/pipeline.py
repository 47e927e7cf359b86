"""Pipeline plan: stages, devices and the order of microbatches."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from tf_libra.internal import validation

_FORMAT = "tf-libra pipeline plan"
_VERSION = 1
_LETTERS = {"F": "forward", "B": "backward"}

Computation = tuple[Literal["forward", "backward"], int]
"""A computation block of a stage: which way, and the microbatch."""


@dataclass(frozen=True)
class PipelineStage:
    """Consecutive layers and the devices that share each microbatch.

    Attributes:
      start: index of the first layer.
      stop: index after the last layer.
      devices: numbers of the cluster's devices, each with a replica of the stage.
      order: U_s, order of the stage's computation blocks: forward and backward of every microbatch,
        each once.

    Raises:
      ValueError: the range or the devices are empty, a device is repeated, or the order lacks a
        block, repeats one, or has a microbatch's backward before its forward.
    """

    start: int
    stop: int
    devices: tuple[int, ...]
    order: tuple[Computation, ...]

    def __post_init__(self) -> None:
        start = validation.integer("start", self.start)
        stop = validation.integer("stop", self.stop, minimum=start + 1)
        devices = tuple(
            validation.integer(f"devices[{index}]", device)
            for index, device in enumerate(validation.sequence("devices", self.devices))
        )
        if not devices or len(set(devices)) < len(devices):
            raise ValueError(f"devices must be at least one, each once, got {devices}")
        order = validation.sequence("order", self.order)
        count = len(order) // 2
        blocks = {(kind, m): (kind, m) for kind in _LETTERS.values() for m in range(count)}
        try:
            # Equal values may differ in type: a microbatch of 0.0 becomes 0.
            order = tuple(blocks.get(tuple(block), block) for block in order)
            places = {block: place for place, block in enumerate(order)}
        except TypeError:  # no pair, or one that is not hashable
            places = {}
        if len(order) < 2 or places.keys() != blocks.keys() or len(places) < len(order):
            raise ValueError(
                "order must hold forward and backward of every microbatch once, got "
                f"{_shown(order)}"
            )
        for microbatch in range(count):
            if places["forward", microbatch] > places["backward", microbatch]:
                raise ValueError(
                    f"order must have forward of microbatch {microbatch} before its backward, "
                    f"got {_shown(order)}"
                )
        for name, value in (("start", start), ("stop", stop), ("devices", devices)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "order", order)


@dataclass(frozen=True)
class PipelinePlan:
    """Stages of one training step (SPP, section III-B).

    Attributes:
      stages: contiguous half-open ranges that cover all layers, on disjoint devices, each with the
        order of its computation blocks.
      layer_names: names of the L layers, in the order of forward computation.
      num_devices: V, size of the planned cluster; some devices may be unused.
      strategy: name of the strategy that made the plan.
      predicted_seconds: simulated seconds of one iteration; None before a simulation.
      notes: remarks of the planner for the reader.

    Raises:
      ValueError: stages do not cover the layers, share a device, or differ in microbatches.
    """

    stages: tuple[PipelineStage, ...]
    layer_names: tuple[str, ...]
    num_devices: int
    strategy: str
    predicted_seconds: float | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        stages = validation.sequence("stages", self.stages)
        names = validation.names("layer_names", self.layer_names)
        devices = validation.integer("num_devices", self.num_devices, minimum=1)
        covered = 0
        stage_of: dict[int, int] = {}
        for index, stage in enumerate(stages):
            if not isinstance(stage, PipelineStage):
                raise ValueError(f"stages[{index}] must be a PipelineStage, got {stage!r}")
            if stage.start != covered:
                raise ValueError(f"stages[{index}].start must be {covered}, got {stage.start}")
            covered = stage.stop
            for device in stage.devices:
                validation.integer(f"stages[{index}].devices", device, 0, devices - 1)
                if stage_of.setdefault(device, index) != index:
                    raise ValueError(
                        f"stages[{index}].devices must be of no other stage, got {device}, which "
                        f"stages[{stage_of[device]}] has"
                    )
            if len(stage.order) != len(stages[0].order):
                raise ValueError(
                    f"stages[{index}].order must be of {len(stages[0].order) // 2} microbatches, "
                    f"as that of stages[0], got {len(stage.order) // 2}"
                )
        if not stages or covered != len(names):
            raise ValueError(
                f"stages must cover {len(names)} layers, at least 1; they cover {covered}"
            )
        frozen = {
            "stages": stages,
            "layer_names": names,
            "num_devices": devices,
            "strategy": validation.text("strategy", self.strategy),
            "notes": validation.texts("notes", self.notes),
        }
        if self.predicted_seconds is not None:
            frozen["predicted_seconds"] = validation.real(
                "predicted_seconds", self.predicted_seconds, minimum=0
            )
        for field, value in frozen.items():
            object.__setattr__(self, field, value)

    @property
    def num_microbatches(self) -> int:
        """Number M of microbatches."""
        return len(self.stages[0].order) // 2

    @cached_property
    def fingerprint(self) -> str:
        """Hexadecimal SHA-256 of the executed schedule: layers, stages, devices and orders.

        The prediction and the notes are excluded.
        """
        executed = {
            "layer_names": self.layer_names,
            "num_devices": self.num_devices,
            "stages": [_stage_entry(stage) for stage in self.stages],
        }
        return validation.digest(_FORMAT, _VERSION, executed)

    def to_json(self) -> str:
        """Return JSON text with the fingerprint, which `from_json` reads back unchanged.

        Orders are text: "F0 F1 B0 B1" is forward of microbatches 0 and 1, then backward.
        """
        return json.dumps(
            {
                "format": _FORMAT,
                "version": _VERSION,
                "fingerprint": self.fingerprint,
                "strategy": self.strategy,
                "predicted_seconds": self.predicted_seconds,
                "notes": self.notes,
                "num_devices": self.num_devices,
                "layer_names": self.layer_names,
                "stages": [_stage_entry(stage) for stage in self.stages],
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, document: str) -> "PipelinePlan":
        """Read a plan from JSON text.

        Raises:
          ValueError: malformed, too large, another version, a field out of its range, or a
            fingerprint that does not match the content.
        """
        value = validation.keys(
            _FORMAT,
            validation.json_document(_FORMAT, _VERSION, document),
            required=("fingerprint", "stages", "layer_names", "num_devices", "strategy"),
            optional=("predicted_seconds", "notes"),
        )
        fingerprint = value.pop("fingerprint")
        entries = validation.sequence("stages", value["stages"])
        value["stages"] = tuple(_stage_of(f"stages[{i}]", entry) for i, entry in enumerate(entries))
        plan = cls(**value)
        validation.same_fingerprint(fingerprint, plan.fingerprint)
        return plan


def _stage_entry(stage: PipelineStage) -> dict[str, object]:
    order = " ".join(f"{kind[0].upper()}{microbatch}" for kind, microbatch in stage.order)
    return {
        "start": stage.start,
        "stop": stage.stop,
        "devices": stage.devices,
        "order": order,
    }


def _stage_of(field: str, entry: Any) -> PipelineStage:
    validation.keys(field, entry, *validation.field_names(PipelineStage))
    order = validation.text(f"{field}: order", entry["order"])
    return validation.built(field, entry | {"order": _order_from_text(field, order)}, PipelineStage)


def _order_from_text(field: str, text: str) -> tuple[Computation, ...]:
    order = []
    for word in text.split():
        kind, number = _LETTERS.get(word[0]), word[1:]
        if kind is None or not (number.isascii() and number.isdigit()):
            raise ValueError(
                f"{field}: order must be of words such as F0 and B12, got {word[:40]!r}"
            )
        order.append((kind, int(number[:18])))
    return tuple(order)  # type: ignore[arg-type]


def _shown(order: Sequence[object]) -> str:
    text = repr(tuple(order))
    return text if len(text) <= 80 else f"{text[:77]}..."
