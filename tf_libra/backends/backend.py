"""Protocol of the backends that execute a plan's all-reduces, and their registry by name.

Importing a backend requires neither TensorFlow nor Horovod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tf_libra.coordination.world import World
from tf_libra.internal.registry import ClassRegistry
from tf_libra.planning.strategy import Strategy
from tf_libra.profiling.events import Events
from tf_libra.profiling.gradient_timing import StepProduction
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import AllReduceRecord

if TYPE_CHECKING:
    from tf_libra.profiling.executed_graph import PlacedAllReduce


@dataclass(frozen=True)
class TracedStep:
    """Step that ran under a plan, as recorded by TensorFlow's profiler.

    Attributes:
        events: events of the trace.
        placed: the plan's all-reduces in the executed graph, for backends whose op is not
            `LibraAllReduce`.
        window: begin and end of the call, nanoseconds since the epoch.
        production: when gradients were produced.
        plan: the plan under which the step ran.
        number: the step number.
    """

    events: Events
    placed: Sequence[PlacedAllReduce]
    window: tuple[int, int]
    production: StepProduction
    plan: Plan
    number: int


class Backend(Protocol):
    """Executes the all-reduces of plans: a frozen dataclass that registers itself.

    Lanes execute collectives that the op does not support or that are in no plan, if the control
    transport has lanes; else Horovod does.

    Attributes:
        name: the value of `optimize(engine=...)`.
        op: op type that the pass creates for each group of a plan; its
            rewriter is `passes/*_rewriter.cc`.
        control: name of the control transport between ranks.
        max_threads: the largest thread count that a plan may give an all-reduce.
        leaves_records: whether each all-reduce is in `executed`; else a trace alone shows them.
        runs_streams: whether all-reduces of several streams run concurrently; else one at a time.
        rounds_tensors: whether it executes plans with a `wire_dtype`.
        shards_updates: whether ranks can own parts of gradients and variables.
        plans_rows: whether groups of plans may have rows of sparse gradients.
        hops: number of consecutive hops of an all-reduce on one level; None: those of a ring,
            2(N-1).
    """

    name: ClassVar[str]
    op: ClassVar[str]
    control: ClassVar[str]
    max_threads: ClassVar[int]
    leaves_records: ClassVar[bool]
    runs_streams: ClassVar[bool]
    rounds_tensors: ClassVar[bool]
    shards_updates: ClassVar[bool]
    plans_rows: ClassVar[bool]
    hops: ClassVar[int | None]

    def check_plan(self, plan: Plan) -> None:
        """Raises `ValueError` for a plan that no job with this backend can execute."""
        ...

    def check_running(self, plan: Plan) -> None:
        """Raises `ValueError` for a plan that this job cannot execute."""
        ...

    def num_lanes(self, threads: int) -> int:
        """Returns the number of lanes needed if all-reduces use up to this number of threads."""
        ...

    def get_ready(self, world: World, threads: int) -> None:
        """Makes this number of threads available to all-reduces.

        Every rank calls it at the same point of the message order, with the same number, after
        control has started. Other all-reduces may run concurrently.

        Raises:
            EngineError: a rank is gone, or this process lacks the resources.
        """
        ...

    def workers_per_host(self) -> int | None:
        """Returns the workers of each host for two-level all-reduces; None for one level."""
        ...

    def default_threads(self, strategy: Strategy) -> Strategy:
        """Returns the strategy with this backend's thread counts, if the user chose none."""
        ...

    def applicable(self, strategy: Strategy) -> Strategy:
        """Returns the strategy with those of its thread counts that can be applied."""
        ...

    def agreed(self) -> Mapping[str, Any]:
        """Returns what must be the same on all ranks before a plan is active, as JSON values."""
        ...

    def begin_step(self) -> None:
        """Prepares the backend for the next step."""
        ...

    def apply(self, plan: Plan) -> None:
        """Applies the threads of a plan that all ranks activate with the next step."""
        ...

    def executed(self) -> tuple[AllReduceRecord, ...]:
        """Returns the records of all-reduces since the last call, and discards them."""
        ...

    def records(self, step: TracedStep) -> tuple[AllReduceRecord, ...]:
        """Returns the all-reduces that only a trace shows; none that `executed` returns."""
        ...

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        """Returns what keeps the active plan from being executed exactly, and the remedies."""
        ...

    def describe(self) -> str:
        """Returns one line about the active plan, such as what applies its threads, or ""."""
        ...


REGISTRY: ClassRegistry[Backend] = ClassRegistry("tf_libra.backends.backend", "engine")
BY_NAME = REGISTRY.by_name
register = REGISTRY.register
resolve = REGISTRY.resolve


def check_one_at_a_time(plan: Plan) -> None:
    """Raises `ValueError` for a plan of several streams."""
    for index, group in enumerate(plan.groups):
        if group.stream != 0:
            raise ValueError(
                f"plan: groups[{index}].stream is {group.stream}; the engine runs one all-reduce"
                " at a time, so only 0 is allowed"
            )
