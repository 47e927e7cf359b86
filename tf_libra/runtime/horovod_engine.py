"""What it takes to let Horovod execute a plan's all-reduces.

Horovod carries the gradients, on MPI, NCCL or Gloo; lanes carry what the ranks say to each other.
"""

import os
from collections.abc import Mapping, Sequence

from tf_libra.plan import Plan
from tf_libra.profiling.events import Events
from tf_libra.profiling.graph import PlacedAllReduce
from tf_libra.runtime.telemetry import AllReduceRecord

OP = "HorovodGroupedAllreduce"
DONE_OP = "LibraAllReduceDone"
# What Horovod 0.28.1 fuses into one buffer unless it is told otherwise.
DEFAULT_FUSION_BYTES = 128 * 2**20
_FUSION = "HOROVOD_FUSION_THRESHOLD"
_AUTOTUNE = "HOROVOD_AUTOTUNE"


def warnings(plan: Plan, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """What in Horovod's settings keeps it from doing as the plan says, and what to set.

    One group of a plan is under way at a time, so Horovod cannot fuse across groups; but it cuts
    a group that is larger than its fusion buffer into several all-reduces.
    """
    largest = max(sum(plan.num_bytes[group.start : group.stop]) for group in plan.groups)
    found = []
    threshold = _fusion_bytes(environment)
    if largest > threshold:
        found.append(
            f"Horovod cuts groups of more than {threshold:,} bytes, and the plan's largest has"
            f" {largest:,}: set {_FUSION}={largest} or more before hvd.init()"
        )
    if environment.get(_AUTOTUNE, "0") not in ("", "0"):
        found.append(
            f"{_AUTOTUNE} is set, and Horovod may cut the plan's groups while it tries things out:"
            f" unset it and set {_FUSION} to {largest} or more"
        )
    return tuple(found)


def _fusion_bytes(environment: Mapping[str, str]) -> int:
    try:
        return int(environment.get(_FUSION, ""))
    except ValueError:
        return DEFAULT_FUSION_BYTES


def records(
    events: Events,
    placed: Sequence[PlacedAllReduce],
    window: tuple[int, int],
    plan: str,
    step: int,
    num_bytes: Mapping[str, int],
) -> tuple[AllReduceRecord, ...]:
    """The all-reduces of a traced step, as far as the trace shows them.

    Horovod keeps no times that could be had. The event of its op is when a group was handed over,
    that of the op behind it when the result was there. What a rank waits for the others in between
    cannot be told from communication, and counts as such.

    Args:
        events: of the trace.
        placed: the all-reduces in the executed graph.
        window: begin and end of the call, nanoseconds since the epoch.
        plan: id of the plan.
        step: number of the step.
        num_bytes: of each gradient, by name.
    """
    inside = events.within(window)
    starts: dict[str, int] = {}
    for name, start in zip(inside.names, inside.start_ns, strict=True):
        starts.setdefault(name, int(start))
    found = []
    for one in placed:
        start, stop = starts.get(f"{one.node}:{OP}"), starts.get(f"{one.node}_done:{DONE_OP}")
        if start is None or stop is None:
            continue
        found.append((start, stop, one))
    return tuple(
        AllReduceRecord(
            step=step,
            sequence=sequence,
            plan=plan,
            group=one.group,
            num_threads=one.num_threads,
            num_bytes=sum(num_bytes[name] for name in one.tensor_names),
            enqueued_ns=start,
            started_ns=start,
            first_byte_ns=start,
            finished_ns=stop,
            tensor_names=one.tensor_names,
        )
        for sequence, (start, stop, one) in enumerate(sorted(found, key=lambda f: f[:2]))
    )
