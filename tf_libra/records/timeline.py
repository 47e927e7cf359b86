"""What the steps under a plan did, in the median."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tf_libra import checks
from tf_libra.model.plan import Plan
from tf_libra.planning.strategy import check_threads
from tf_libra.records import kinds, spread
from tf_libra.records.document import read, set_field
from tf_libra.records.spread import Spread
from tf_libra.records.step import StepRecord


@dataclass(frozen=True)
class SpanRecord:
    """One group's all-reduce over several steps; seconds since the start of backward.

    Attributes:
      group: index in the plan; -1 where the pass has left it alone.
      num_threads: communication threads it ran on.
      num_bytes: its size.
      ready: when its last tensor was produced.
      start: when it started.
      end: when it ended.
    """

    group: int
    num_threads: int
    num_bytes: int
    ready: Spread
    start: Spread
    end: Spread

    def __post_init__(self) -> None:
        set_field(self, "group", checks.integer("group", self.group, minimum=-1))
        set_field(self, "num_threads", check_threads("num_threads", self.num_threads))
        set_field(self, "num_bytes", checks.integer("num_bytes", self.num_bytes))
        for field in ("ready", "start", "end"):
            set_field(self, field, spread.checked(field, getattr(self, field)))


@kinds.register
@dataclass(frozen=True)
class TimelineRecord:
    """What the steps under a plan did, as far as they were traced.

    It is computed of `StepRecord`s. Files of versions before hold it as well.

    Attributes:
      function: name of the training function.
      plan: the plan's fingerprint.
      step: the last step that counts.
      num_steps: how many steps count, at least 1.
      spans: one per executed all-reduce, in order of start. A group that could not be merged as
        planned has several.
      compute: from the start of backward to the last gradient's production.
      backward: from the start of backward to its end, communication included.

    Raises:
      ValueError: a field is out of its range; named.
    """

    function: str
    plan: str
    step: int
    num_steps: int
    spans: tuple[SpanRecord, ...]
    compute: Spread
    backward: Spread

    KIND: ClassVar[str] = "timeline"

    def __post_init__(self) -> None:
        checks.text("function", self.function)
        checks.text("plan", self.plan)
        set_field(self, "step", checks.integer("step", self.step, minimum=1))
        set_field(self, "num_steps", checks.integer("num_steps", self.num_steps, minimum=1))
        set_field(self, "spans", checks.items("spans", self.spans, SpanRecord))
        for field in ("compute", "backward"):
            set_field(self, field, spread.checked(field, getattr(self, field)))

    @classmethod
    def of(cls, plan: Plan, steps: Sequence[StepRecord]) -> "TimelineRecord | None":
        """Median and quartiles over the steps that can be laid along their computation.

        Steps that executed other all-reduces than most, such as one from before a graph was
        traced anew, do not count. None where no step counts.

        Args:
            plan: what the steps ran under.
            steps: of one training function, in the order in which they were taken.
        """
        timelines = [one for one in (step.timeline(plan) for step in steps) if one is not None]
        if not timelines:
            return None
        shapes = [tuple((g.group, g.num_threads, g.num_bytes) for g in t.groups) for t in timelines]
        usual = statistics.mode(shapes)
        counted = [t for t, shape in zip(timelines, shapes, strict=True) if shape == usual]
        spans = tuple(
            SpanRecord(
                *shape,
                ready=Spread.of([t.groups[i].ready_seconds for t in counted]),
                start=Spread.of([t.groups[i].start_seconds for t in counted]),
                end=Spread.of([t.groups[i].end_seconds for t in counted]),
            )
            for i, shape in enumerate(usual)
        )
        return cls(
            function=steps[-1].function,
            plan=plan.fingerprint,
            step=steps[-1].step,
            num_steps=len(counted),
            spans=spans,
            compute=Spread.of([t.compute_seconds for t in counted]),
            backward=Spread.of([t.backward_seconds for t in counted]),
        )

    @classmethod
    def from_json(cls, document: str) -> "TimelineRecord":
        """Reads a record from JSON text; `ValueError` names what is wrong with it."""
        return cls(**read(cls, document))
