"""Telemetry of executed all-reduces and gathers, and statistics of background jobs."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# Plan id of an all-reduce without planned gradients.
UNPLANNED = "unplanned"


@dataclass(frozen=True)
class AllReduceRecord:
    """One executed all-reduce on this rank, or a gather of parts that ranks own.

    Times are nanoseconds since the epoch, the clock of TensorFlow's profiler.

    Attributes:
        step: number of the step.
        sequence: number of the all-reduce in this process.
        plan: id of the active plan; empty without a plan.
        group: index of the tensor group; -1 without a plan.
        num_threads: lanes used.
        num_bytes: size of the group; of rows that ranks gather, that of an all-reduce that sends
            as much.
        omitted_bytes: zeros that this rank has left out of what it sent, over all of its hops.
        sent_bytes: what it has sent over sockets, or, if there are none, in shared memory, over all
            of its hops; 0 if unknown.
        enqueued_ns: submission of the op to the engine.
        started_ns: start of the first lane.
        first_byte_ns: first byte of the last rank to arrive: the end of the wait for other ranks.
        finished_ns: end of the last lane.
        tensor_names: tensors of the group, in backward order.
        cpu_ns: core time of this rank's lanes; 0 if unknown.
        is_gather: whether weights, or sums of parts, were gathered; `group` is -1.
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
    omitted_bytes: int = 0
    cpu_ns: int = 0
    sent_bytes: int = 0
    is_gather: bool = False

    @property
    def seconds(self) -> float:
        """Seconds from the first lane's start to the last lane's end."""
        return (self.finished_ns - self.started_ns) * 1e-9

    @property
    def sent_share(self) -> float:
        """Share of its bytes that this rank sent, from 0 to 1; the others are omitted zeros."""
        total = self.sent_bytes + self.omitted_bytes
        return self.sent_bytes / total if total else 1.0


def parse_records(text: str) -> tuple[AllReduceRecord, ...]:
    """Read the JSON of `TfLibraDrainTelemetry`."""
    document: dict[str, Any] = json.loads(text)
    operations = {
        key: {**value, "tensor_names": tuple(value["tensor_names"])}
        for key, value in document["operations"].items()
    }
    return tuple(
        AllReduceRecord(**operations[row.pop("operation")], **row) for row in document["records"]
    )


def records_of_step(records: Iterable[AllReduceRecord], step: int) -> tuple[AllReduceRecord, ...]:
    """Returns the records of one step's gradients, in the order of execution."""
    chosen = (r for r in records if r.step == step and r.plan != UNPLANNED and not r.is_gather)
    return tuple(sorted(chosen, key=lambda r: r.sequence))


def gathers_among(records: Iterable[AllReduceRecord]) -> tuple[AllReduceRecord, ...]:
    """Returns the gathers of any steps under a plan, in the order of execution."""
    return tuple(sorted((r for r in records if r.is_gather and r.plan), key=lambda r: r.sequence))
