"""Record of one step under a plan, on one rank."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

from tf_libra.internal import validation
from tf_libra.internal.values import Natural, Naturals, Value
from tf_libra.profiling.overlap_samples import MeasuredGroup, MeasuredTimeline
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.record_types import RecordDocument, series_tag
from tf_libra.specs.plan import Plan

if TYPE_CHECKING:
    from tf_libra.profiling.gradient_timing import StepProduction
    from tf_libra.specs.telemetry import AllReduceRecord


@dataclass(frozen=True)
class AllReduceSpan(Value):
    """One executed all-reduce or gather on one rank.

    Times are nanoseconds since the epoch by the clock of the rank's host.

    Attributes:
      group: index in the plan; -1 without a plan, and if the plan has no gathers of its own.
      num_threads: communication threads.
      num_bytes: size of the group.
      enqueued_ns: submission of the op to the engine.
      started_ns: start of its first thread.
      first_byte_ns: first byte of the last rank to arrive; before `started_ns` without a wait.
      finished_ns: end of its last thread.
      tensors: indices of the reduced tensors in the plan; empty for the whole group. Of a gather,
        the tensors whose weights were gathered.
    """

    group: Annotated[int, partial(validation.integer, minimum=-1)]
    num_threads: Natural
    num_bytes: Natural
    enqueued_ns: Natural
    started_ns: Natural
    first_byte_ns: Natural
    finished_ns: Natural
    tensors: Naturals = ()

    @classmethod
    def from_telemetry(cls, record: "AllReduceRecord", plan: Plan) -> "AllReduceSpan":
        """Builds a span from the engine's record."""
        at = {name: index for index, name in enumerate(plan.tensor_names)}
        tensors = tuple(sorted(at[name] for name in record.tensor_names if name in at))
        names = [field.name for field in dataclasses.fields(cls) if field.name != "tensors"]
        times = {name: getattr(record, name) for name in names}
        return cls(**times, tensors=() if tensors == _whole(plan, record.group) else tensors)

    @classmethod
    def from_gather(cls, record: "AllReduceRecord", plan: Plan) -> "AllReduceSpan":
        """Builds a span from the engine's record of a gather."""
        # The engine names "TENSOR in NODE", and "TENSOR by DIGEST in NODE" for other variables.
        names = {name.partition(" ")[0] for name in record.tensor_names}
        tensors = tuple(i for i, name in enumerate(plan.tensor_names) if name in names)
        of_gather = (
            index
            for index, gather in enumerate(plan.gathers)
            if tensors and gather.start <= tensors[0] < gather.stop
        )
        span = cls.from_telemetry(record, plan)
        return dataclasses.replace(span, group=next(of_gather, -1), tensors=tensors)

    def reduced(self, plan: Plan) -> tuple[int, ...]:
        """Returns the indices of the reduced tensors in the plan."""
        return self.tensors or _whole(plan, self.group)


@record_types.register
@dataclass(frozen=True)
class StepRecord(RecordDocument):
    """One step under a plan on one rank, in nanoseconds since the epoch.

    Attributes:
      function: name of the training function.
      plan: fingerprint of the plan.
      rank: rank of the step.
      step: number of the step.
      started_ns: call of the step.
      finished_ns: return of the call.
      all_reduces: all-reduces in order of execution.
      backward_start_ns: start of backward computation; None if the step was not traced.
      produced_ns: production of each of the plan's tensors, in the plan's order; empty if the step
        was not traced.
      exchanges_ns: pairs of clock exchanges before the step: this rank's send to all others, and
        the arrival of all of theirs. The number is equal on all ranks, mostly 0.
      host: name of the rank's host; empty in files of earlier versions.
      gathers: gathers that ended during the call, in order of execution. Those under the forward
        pass began in the step before.

    Raises:
      ValueError: a field is out of its range; named.
    """

    function: str
    plan: str
    rank: Natural
    step: Natural
    started_ns: Natural
    finished_ns: Natural
    all_reduces: tuple[AllReduceSpan, ...]
    backward_start_ns: Natural | None = None
    produced_ns: Naturals = ()
    exchanges_ns: tuple[tuple[Natural, Natural], ...] = ()
    host: str = ""
    gathers: tuple[AllReduceSpan, ...] = ()

    KIND: ClassVar[str] = "step"

    @classmethod
    def from_execution(
        cls,
        function: str,
        plan: Plan,
        rank: int,
        step: int,
        called_ns: tuple[int, int],
        records: "Sequence[AllReduceRecord]",
        production: "StepProduction | None",
        gathers: "Sequence[AllReduceRecord]" = (),
    ) -> "StepRecord":
        """Builds the record of an executed step; `production` if it was traced."""
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
                AllReduceSpan.from_telemetry(record, plan)
                for record in sorted(records, key=lambda record: record.sequence)
            ),
            backward_start_ns=backward_start_ns,
            produced_ns=produced_ns,
            gathers=tuple(AllReduceSpan.from_gather(record, plan) for record in gathers),
        )

    def timeline(self, plan: Plan) -> MeasuredTimeline | None:
        """Returns the all-reduces along backward computation.

        None if the step was not traced, reduced nothing, or ran under another plan.
        """
        start_ns, produced = self.backward_start_ns, self.produced_ns
        if start_ns is None or not self.all_reduces or len(produced) != len(plan.tensor_names):
            return None
        spans = sorted(self.all_reduces, key=lambda span: (span.started_ns, span.group))
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
        """Tag of the record's series of summaries."""
        return series_tag(self.function, self.KIND, self.plan)


def _whole(plan: Plan, group: int) -> tuple[int, ...]:
    """Returns the indices of a group's tensors; empty without such a group."""
    if not 0 <= group < len(plan.groups):
        return ()
    return tuple(range(plan.groups[group].start, plan.groups[group].stop))
