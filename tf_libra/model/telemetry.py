"""What the engine says of the all-reduces it has executed."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# What stands for a plan where an all-reduce carries no planned gradient.
UNPLANNED = "unplanned"


@dataclass(frozen=True)
class AllReduceRecord:
    """One executed all-reduce on this rank.

    Times are nanoseconds since the epoch, the clock of TensorFlow's profiler.

    Attributes:
        step: the step it belongs to.
        sequence: counts the all-reduces of this process.
        plan: id of the plan; empty where no plan was applied.
        group: index of the tensor group; -1 where no plan was applied.
        num_threads: lanes used.
        num_bytes: size of the group.
        enqueued_ns: when the op handed it to the engine.
        started_ns: when the first lane began.
        first_byte_ns: when every other rank had sent a first byte: the wait for them was over.
        finished_ns: when the last lane ended.
        tensor_names: the group's tensors, in backward order.
    """

    step: int
    sequence: int
    plan: str
    group: int
    num_threads: int
    num_bytes: int
    enqueued_ns: int
    started_ns: int
    first_byte_ns: int
    finished_ns: int
    tensor_names: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """From the first lane's start to the last lane's end."""
        return (self.finished_ns - self.started_ns) * 1e-9


def parse_records(text: str) -> tuple[AllReduceRecord, ...]:
    """Reads the JSON of `TfLibraDrainTelemetry`."""
    document: dict[str, Any] = json.loads(text)
    operations = {
        key: {**value, "tensor_names": tuple(value["tensor_names"])}
        for key, value in document["operations"].items()
    }
    return tuple(
        AllReduceRecord(**operations[row.pop("operation")], **row) for row in document["records"]
    )


def of_step(records: Iterable[AllReduceRecord], step: int) -> tuple[AllReduceRecord, ...]:
    """The records of one step's gradients, in the order of execution."""
    chosen = (r for r in records if r.step == step and r.plan != UNPLANNED)
    return tuple(sorted(chosen, key=lambda r: r.sequence))
