"""Base of backends whose op belongs to another library, which keeps no records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tf_libra.backends import backend
from tf_libra.coordination.horovod_control_plane import HorovodControlTransport
from tf_libra.coordination.world import World
from tf_libra.planning.strategy import Strategy
from tf_libra.specs.plan import Plan, check_whole_tensors
from tf_libra.specs.telemetry import AllReduceRecord

# Largest thread count for an all-reduce on a GPU (LIBRA, section V-A).
MAX_THREADS = 4096


@dataclass(frozen=True)
class ExternalOpBackend:
    """A backend without thread counts; the pass writes its op."""

    name: ClassVar[str]
    op: ClassVar[str]
    control: ClassVar[str] = HorovodControlTransport.name
    max_threads: ClassVar[int] = MAX_THREADS
    leaves_records: ClassVar[bool] = False
    runs_streams: ClassVar[bool] = False
    rounds_tensors: ClassVar[bool] = False
    shards_updates: ClassVar[bool] = False
    plans_rows: ClassVar[bool] = False
    hops: ClassVar[int | None] = None

    def check_plan(self, plan: Plan) -> None:
        """Accepts plans of whole tensors and one stream."""
        check_whole_tensors(plan, f"engine={self.name!r}")
        backend.check_one_at_a_time(plan)

    def check_running(self, plan: Plan) -> None:
        """Accepts every planned gradient."""

    def num_lanes(self, threads: int) -> int:
        """Returns 0: Horovod also executes tensors that this op does not support."""
        return 0

    def get_ready(self, world: World, threads: int) -> None:
        """Does nothing: the backend is ready with the control plane."""

    def workers_per_host(self) -> int | None:
        """A ring has one level."""
        return None

    def default_threads(self, strategy: Strategy) -> Strategy:
        """Returns the strategy unchanged, with its own thread counts."""
        return strategy

    def applicable(self, strategy: Strategy) -> Strategy:
        """Returns one thread count, which represents all."""
        return strategy.with_threads((min(strategy.allowed_threads),))

    def agreed(self) -> Mapping[str, Any]:
        """Returns no items in addition to those that every backend needs."""
        return {}

    def begin_step(self) -> None:
        """Does nothing: the library needs no notice of a step."""

    def apply(self, plan: Plan) -> None:
        """Does nothing: the library takes no thread counts from a plan."""

    def executed(self) -> tuple[AllReduceRecord, ...]:
        """Returns no records: the library keeps none."""
        return ()

    def records(self, step: backend.TracedStep) -> tuple[AllReduceRecord, ...]:
        """Returns records from the `LibraAllReduceDone` that the pass writes behind each op."""
        return traced_records(step)

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        """Returns no warnings."""
        return ()

    def describe(self) -> str:
        """Returns a warning that thread counts are not applied."""
        return f"{self.name} executes the plan; its thread counts are not applied"


def traced_records(step: backend.TracedStep) -> tuple[AllReduceRecord, ...]:
    """Returns the all-reduces of a traced step that the trace contains.

    The library offers no times, and its op leaves none in a trace. The op behind it shows when the
    result was ready. The all-reduce began when its gradients and the previous result were ready.
    Time during which a rank waits for the others cannot be separated from communication, so it
    counts as communication.
    """
    plan, production = step.plan, step.production
    num_bytes = dict(zip(plan.tensor_names, plan.num_bytes, strict=True))
    produced_ns = dict(zip(production.names, production.produced_ns.tolist(), strict=True))
    inside = step.events.within(step.window)
    done_ns: dict[str, int] = {}
    for node, start in zip(inside.node, inside.start_ns, strict=True):
        done_ns.setdefault(inside.node_names[node], int(start))
    finished = [(done_ns.get(f"{placed.node}_done"), placed) for placed in step.placed]
    found: list[AllReduceRecord] = []
    previous_ns = production.last_ns if plan.after_backward else 0
    for stop, placed in sorted(((s, o) for s, o in finished if s is not None), key=lambda f: f[0]):
        ready_ns = max((produced_ns.get(name, 0) for name in placed.tensor_names), default=0)
        start = max(ready_ns, previous_ns)
        previous_ns = stop
        found.append(
            AllReduceRecord(
                step=step.number,
                sequence=len(found),
                plan=plan.short_id,
                group=placed.group,
                num_threads=placed.num_threads,
                num_bytes=sum(num_bytes[name] for name in placed.tensor_names),
                enqueued_ns=start,
                started_ns=start,
                first_byte_ns=start,
                finished_ns=stop,
                tensor_names=placed.tensor_names,
            )
        )
    return tuple(found)
