"""What it takes to let Horovod execute a plan's all-reduces.

Horovod carries the gradients, on MPI, NCCL or Gloo; lanes carry what the ranks say to each other.
"""

import os
from collections.abc import Mapping, Sequence

from tf_libra import strategies
from tf_libra.backends import horovod_fusion, nccl
from tf_libra.model.plan import Plan
from tf_libra.model.telemetry import AllReduceRecord
from tf_libra.profiling.backward import StepProduction
from tf_libra.profiling.events import Events
from tf_libra.profiling.graph import PlacedAllReduce

OP = "HorovodGroupedAllreduce"
_AUTOTUNE = "HOROVOD_AUTOTUNE"


def warnings(plan: Plan, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """What in Horovod's settings keeps it from doing as the plan says, and what to set.

    One group of a plan is under way at a time, so Horovod cannot fuse across groups; but it cuts
    a group that is larger than its fusion buffer into several all-reduces, unless that is a single
    tensor.
    """
    fusion = horovod_fusion.of_environment(environment, on_gpu=nccl.in_use(environment))
    groups = [plan.num_bytes[group.start : group.stop] for group in plan.groups]
    largest = max((sum(map(fusion.padded, one)) for one in groups if len(one) > 1), default=0)
    if not largest:
        return ()
    found = []
    threshold = fusion.buffer_bytes
    if threshold is not None and largest > threshold:
        found.append(
            f"Horovod cuts groups of more than {threshold:,} bytes, and the plan's largest has"
            f" {largest:,}: set {horovod_fusion.THRESHOLD}={largest} or more before hvd.init()"
        )
    if environment.get(_AUTOTUNE, "0") not in ("", "0"):
        found.append(
            f"{_AUTOTUNE} is set, and Horovod may cut the plan's groups while it tries things out:"
            f" unset it and set {horovod_fusion.THRESHOLD} to {largest} or more"
        )
    return tuple(found)


def with_what_can_be_applied(strategy: strategies.Strategy) -> strategies.Strategy:
    """The strategy with the thread counts that somebody can apply: one, unless NCCL takes them.

    Raises:
        ValueError: NCCL can have no such thread counts.
    """
    if nccl.in_use():
        nccl.threads_per_channel(strategy.allowed_threads)
        return strategy
    return strategy.with_threads((min(strategy.allowed_threads),))


def with_default_threads(strategy: strategies.Strategy) -> strategies.Strategy:
    """The strategy with the thread counts of NCCL, where that takes any; for who has said none.

    One that does not choose gets the most, as NCCL by itself makes all channels that it may.

    Raises:
        ValueError: NCCL's settings leave no thread counts.
    """
    if not nccl.in_use():
        return strategy
    counts = nccl.default_threads()
    return strategy.with_threads(counts if strategy.chooses_threads else counts[-1:])


def apply_threads(plan: Plan) -> None:
    """Hands the plan's thread counts to who can apply them; every rank has to, at the same step.

    Raises:
        ValueError: NCCL can have no such thread counts.
    """
    if nccl.in_use():
        nccl.apply(plan)


def describe_threads() -> str:
    """One line: whether anybody applies the thread counts of plans."""
    if nccl.in_use():
        return "Horovod executes the plan; its thread counts are handed to NCCL"
    import horovod.tensorflow as hvd

    if hvd.nccl_built():
        why = "NCCL is not told of them: call tf_libra.nccl.prepare() before hvd.init()"
    else:
        why = f"Horovod's {'Gloo' if hvd.gloo_enabled() else 'MPI'} takes no thread count"
    return f"Horovod executes the plan; its thread counts are not applied: {why}"


def records(
    events: Events,
    placed: Sequence[PlacedAllReduce],
    window: tuple[int, int],
    production: StepProduction,
    plan: Plan,
    step: int,
) -> tuple[AllReduceRecord, ...]:
    """The all-reduces of a traced step, as far as the trace shows them.

    Horovod keeps no times that could be had, and its op leaves none in a trace. The op behind it
    shows when the result was there; it began when its gradients and the result before were. What
    a rank waits for the others in between cannot be told from communication, and counts as such.

    Args:
        events: of the trace.
        placed: the all-reduces in the executed graph.
        window: begin and end of the call, nanoseconds since the epoch.
        production: when gradients were produced.
        plan: under which the step ran.
        step: its number.
    """
    num_bytes = dict(zip(plan.tensor_names, plan.num_bytes, strict=True))
    produced_ns = dict(zip(production.names, production.produced_ns.tolist(), strict=True))
    inside = events.within(window)
    done_ns: dict[str, int] = {}
    for node, start in zip(inside.node, inside.start_ns, strict=True):
        done_ns.setdefault(inside.node_names[node], int(start))
    finished = [(done_ns.get(f"{one.node}_done"), one) for one in placed]
    found: list[AllReduceRecord] = []
    previous_ns = production.last_ns if plan.after_backward else 0
    for stop, one in sorted(((s, o) for s, o in finished if s is not None), key=lambda f: f[0]):
        ready_ns = max((produced_ns.get(name, 0) for name in one.tensor_names), default=0)
        start = max(ready_ns, previous_ns)
        previous_ns = stop
        found.append(
            AllReduceRecord(
                step=step,
                sequence=len(found),
                plan=plan.short_id,
                group=one.group,
                num_threads=one.num_threads,
                num_bytes=sum(num_bytes[name] for name in one.tensor_names),
                enqueued_ns=start,
                started_ns=start,
                first_byte_ns=start,
                finished_ns=stop,
                tensor_names=one.tensor_names,
            )
        )
    return tuple(found)
