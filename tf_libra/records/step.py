"""One step under a plan, on one rank."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tf_libra import checks
from tf_libra.model.plan import Plan
from tf_libra.profiling.samples import MeasuredGroup, MeasuredTimeline
from tf_libra.records import kinds
from tf_libra.records.document import read, series_tag, set_field, written

if TYPE_CHECKING:
    from tf_libra.model.telemetry import AllReduceRecord
    from tf_libra.profiling.backward import StepProduction


@dataclass(frozen=True)
class AllReduceSpan:
    """One executed all-reduce on one rank.

    Times are nanoseconds since the epoch by the clock of the rank's host.

    Attributes:
      group: index in the plan; -1 where no plan was applied.
      num_threads: communication threads it ran on.
      num_bytes: its size.
      enqueued_ns: when the op handed it to the engine.
      started_ns: when its first thread began.
      first_byte_ns: when every other rank had sent a first byte; before `started_ns` where none
        was awaited.
      finished_ns: when its last thread ended.
      tensors: indices in the plan of what it reduced; empty where that is its group, whole.
    """

    group: int
    num_threads: int
    num_bytes: int
    enqueued_ns: int
    started_ns: int
    first_byte_ns: int
    finished_ns: int
    tensors: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.name != "tensors":
                minimum = -1 if field.name == "group" else 0
                value = checks.integer(field.name, getattr(self, field.name), minimum)
                set_field(self, field.name, value)
        tensors = checks.sequence("tensors", self.tensors)
        set_field(self, "tensors", tuple(checks.integer("tensors", index) for index in tensors))

    @classmethod
    def of(cls, record: "AllReduceRecord", plan: Plan) -> "AllReduceSpan":
        """Of what the engine says of an all-reduce."""
        at = {name: index for index, name in enumerate(plan.tensor_names)}
        tensors = tuple(sorted(at[name] for name in record.tensor_names if name in at))
        names = [field.name for field in dataclasses.fields(cls) if field.name != "tensors"]
        times = {name: getattr(record, name) for name in names}
        return cls(**times, tensors=() if tensors == _whole(plan, record.group) else tensors)

    def reduced(self, plan: Plan) -> tuple[int, ...]:
        """Indices in the plan of what it reduced."""
        return self.tensors or _whole(plan, self.group)


@kinds.register
@dataclass(frozen=True)
class StepRecord:
    """One step under a plan on one rank, in nanoseconds since the epoch.

    Attributes:
      function: name of the training function.
      plan: the plan's fingerprint.
      rank: whose step it is.
      step: which.
      started_ns: when the step was called.
      finished_ns: when the call returned.
      all_reduces: in order of execution.
      backward_start_ns: when backward computation started; None where the step was not traced.
      produced_ns: when each of the plan's tensors was produced, in the plan's order; empty where
        the step was not traced.
      exchanges_ns: when this rank sent messages to all others before the step, and when all of
        theirs had come: pairs, the same number on every rank. For comparing clocks; mostly empty.
      host: the name of the rank's host; empty in files of versions before.

    Raises:
      ValueError: a field is out of its range; named.
    """

    function: str
    plan: str
    rank: int
    step: int
    started_ns: int
    finished_ns: int
    all_reduces: tuple[AllReduceSpan, ...]
    backward_start_ns: int | None = None
    produced_ns: tuple[int, ...] = ()
    exchanges_ns: tuple[tuple[int, int], ...] = ()
    host: str = ""

    KIND: ClassVar[str] = "step"

    def __post_init__(self) -> None:
        checks.text("function", self.function)
        checks.text("plan", self.plan)
        for field in ("rank", "step", "started_ns", "finished_ns"):
            set_field(self, field, checks.integer(field, getattr(self, field)))
        set_field(self, "all_reduces", checks.items("all_reduces", self.all_reduces, AllReduceSpan))
        if self.backward_start_ns is not None:
            start = checks.integer("backward_start_ns", self.backward_start_ns)
            set_field(self, "backward_start_ns", start)
        produced = checks.sequence("produced_ns", self.produced_ns)
        set_field(self, "produced_ns", tuple(checks.integer("produced_ns", at) for at in produced))
        pairs = []
        for pair in checks.sequence("exchanges_ns", self.exchanges_ns):
            times = tuple(checks.integer("exchanges_ns", at) for at in pair)
            if len(times) != 2:
                raise ValueError(f"exchanges_ns must hold pairs, got {len(times)} entries")
            pairs.append(times)
        set_field(self, "exchanges_ns", tuple(pairs))
        checks.text("host", self.host)

    @classmethod
    def of(
        cls,
        function: str,
        plan: Plan,
        rank: int,
        step: int,
        called_ns: tuple[int, int],
        records: "Sequence[AllReduceRecord]",
        production: "StepProduction | None",
    ) -> "StepRecord":
        """The record of an executed step; `production` where it was traced."""
        backward_start_ns, produced_ns = None, ()
        if production is not None and set(plan.tensor_names) <= set(production.names):
            at = dict(zip(production.names, production.produced_ns.tolist(), strict=True))
            backward_start_ns = int(production.backward_start_ns)
            produced_ns = tuple(at[name] for name in plan.tensor_names)
        return cls(
            function=function,
            plan=plan.fingerprint,
            rank=rank,
            step=step,
            started_ns=called_ns[0],
            finished_ns=called_ns[1],
            all_reduces=tuple(
                AllReduceSpan.of(record, plan)
                for record in sorted(records, key=lambda record: record.sequence)
            ),
            backward_start_ns=backward_start_ns,
            produced_ns=produced_ns,
        )

    def timeline(self, plan: Plan) -> MeasuredTimeline | None:
        """The all-reduces along backward computation; None where the step does not tell that.

        That is, where it was not traced, has reduced nothing, or is of another plan.
        """
        start_ns, produced = self.backward_start_ns, self.produced_ns
        if start_ns is None or not self.all_reduces or len(produced) != len(plan.tensor_names):
            return None
        spans = sorted(self.all_reduces, key=lambda one: (one.started_ns, one.group))
        if any(index >= len(produced) for span in spans for index in span.tensors):
            return None
        groups = tuple(
            MeasuredGroup(
                span.group,
                span.num_threads,
                span.num_bytes,
                ready_seconds=max(
                    [0, *(produced[index] - start_ns for index in span.reduced(plan))]
                )
                * 1e-9,
                start_seconds=(span.started_ns - start_ns) * 1e-9,
                end_seconds=(span.finished_ns - start_ns) * 1e-9,
            )
            for span in spans
        )
        compute_seconds = max(max(produced) - start_ns, 0) * 1e-9
        ends = [compute_seconds, *(group.end_seconds for group in groups)]
        return MeasuredTimeline(groups, compute_seconds, max(ends))

    @property
    def tag(self) -> str:
        """The name of the series of summaries that the record belongs to."""
        return series_tag(self.function, self.KIND, self.plan)

    def to_json(self) -> str:
        """Returns the record as JSON text; `from_json` reads it back unchanged."""
        return written(self.KIND, dataclasses.asdict(self))

    @classmethod
    def from_json(cls, document: str) -> "StepRecord":
        """Reads a record from JSON text; `ValueError` names what is wrong with it."""
        return cls(**read(cls, document))


def _whole(plan: Plan, group: int) -> tuple[int, ...]:
    """Indices of a group's tensors; none where there is no such group."""
    if not 0 <= group < len(plan.groups):
        return ()
    return tuple(range(plan.groups[group].start, plan.groups[group].stop))
