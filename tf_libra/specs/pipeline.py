"""Pipeline plan: stages, devices and the order of microbatches."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from tf_libra.internal import validation
from tf_libra.internal.codec import FingerprintedDocument
from tf_libra.internal.values import Count, Names, Natural, NonNegative, Value

_LETTERS = {"F": "forward", "B": "backward"}

Computation = tuple[Literal["forward", "backward"], int]
"""A computation block of a stage: which way, and the microbatch."""


def _order(field: str, value: Any) -> tuple[Computation, ...]:
    """Returns computation blocks, which may be text such as "F0 B0", or raise `ValueError`."""
    if isinstance(value, str):
        value = _order_from_text(field, value)
    order = validation.sequence(field, value)
    count = len(order) // 2
    blocks = {(kind, m): (kind, m) for kind in _LETTERS.values() for m in range(count)}
    try:
        # Equal values may differ in type: a microbatch of 0.0 becomes 0.
        order = tuple(blocks.get(tuple(block), block) for block in order)
        positions = {block: position for position, block in enumerate(order)}
    except TypeError:  # no pair, or one that is not hashable
        positions = {}
    if len(order) < 2 or positions.keys() != blocks.keys() or len(positions) < len(order):
        raise ValueError(
            f"{field} must hold forward and backward of every microbatch once, got "
            f"{validation.shortened(order)}"
        )
    for microbatch in range(count):
        if positions["forward", microbatch] > positions["backward", microbatch]:
            raise ValueError(
                f"{field} must have forward of microbatch {microbatch} before its backward, "
                f"got {validation.shortened(tuple(order))}"
            )
    return order


def _order_from_text(field: str, text: str) -> tuple[Computation, ...]:
    order = []
    for word in text.split():
        kind, number = _LETTERS.get(word[0]), word[1:]
        if kind is None or not (number.isascii() and number.isdigit()):
            raise ValueError(f"{field} must be of words such as F0 and B12, got {word[:40]!r}")
        order.append((kind, int(number[:18])))
    return tuple(order)  # type: ignore[arg-type]


@dataclass(frozen=True)
class PipelineStage(Value):
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

    start: Natural
    stop: Natural
    devices: tuple[Natural, ...]
    order: Annotated[tuple[Computation, ...], _order]

    def _validate(self) -> None:
        validation.integer("stop", self.stop, minimum=self.start + 1)
        if not self.devices or len(set(self.devices)) < len(self.devices):
            raise ValueError(f"devices must be at least one, each once, got {self.devices}")

    def _to_fields(self) -> dict[str, Any]:
        """Returns the fields as JSON values; the order is text.

        "F0 F1 B0 B1" is forward of microbatches 0 and 1, then backward.
        """
        order = " ".join(f"{kind[0].upper()}{microbatch}" for kind, microbatch in self.order)
        return super()._to_fields() | {"order": order}


@dataclass(frozen=True)
class PipelinePlan(FingerprintedDocument):
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
    layer_names: Names
    num_devices: Count
    strategy: str
    predicted_seconds: NonNegative | None = None
    notes: tuple[str, ...] = ()

    FORMAT: ClassVar = "tf-libra pipeline plan"
    INDENT: ClassVar = 1

    def _validate(self) -> None:
        covered = 0
        stage_of: dict[int, int] = {}
        for index, stage in enumerate(self.stages):
            if stage.start != covered:
                raise ValueError(f"stages[{index}].start must be {covered}, got {stage.start}")
            covered = stage.stop
            for device in stage.devices:
                validation.integer(f"stages[{index}].devices", device, 0, self.num_devices - 1)
                if stage_of.setdefault(device, index) != index:
                    raise ValueError(
                        f"stages[{index}].devices must be of no other stage, got {device}, which "
                        f"stages[{stage_of[device]}] has"
                    )
            if len(stage.order) != len(self.stages[0].order):
                raise ValueError(
                    f"stages[{index}].order must be of {self.num_microbatches} microbatches, as "
                    f"that of stages[0], got {len(stage.order) // 2}"
                )
        if covered != len(self.layer_names) or not covered:
            raise ValueError(
                f"stages must cover {len(self.layer_names)} layers, at least 1; they cover "
                f"{covered}"
            )

    @property
    def num_microbatches(self) -> int:
        """Number M of microbatches."""
        return len(self.stages[0].order) // 2

    def _executed(self) -> dict[str, Any]:
        """Returns the executed schedule: layers, stages, devices and orders."""
        return {
            "layer_names": self.layer_names,
            "num_devices": self.num_devices,
            "stages": [stage._to_fields() for stage in self.stages],
        }
