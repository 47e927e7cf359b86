"""Median timeline of the steps under a plan, with the spread of its times."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from tf_libra.internal import validation
from tf_libra.internal.values import Count, Int32Count, Natural, Value
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.record_types import RecordDocument
from tf_libra.reporting.records.step import StepRecord
from tf_libra.specs.plan import Plan


@dataclass(frozen=True)
class Spread(Value):
    """Median and quartiles of a quantity over several steps, in seconds."""

    low: float
    median: float
    high: float

    def _validate(self) -> None:
        if not self.low <= self.median <= self.high:
            raise ValueError(
                "low, median and high must ascend, got "
                f"{self.low!r}, {self.median!r}, {self.high!r}"
            )

    @classmethod
    def from_values(cls, values: Sequence[float]) -> "Spread":
        """Computes the spread of at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(low, median, high)


@dataclass(frozen=True)
class SpanRecord(Value):
    """All-reduce of a group over several steps; seconds since the start of backward.

    Attributes:
      group: index in the plan; -1 if the pass has not merged it.
      num_threads: communication threads.
      num_bytes: size of the group.
      ready: production of its last tensor.
      start: start of the all-reduce.
      end: end of the all-reduce.
    """

    group: Annotated[int, partial(validation.integer, minimum=-1)]
    num_threads: Int32Count
    num_bytes: Natural
    ready: Spread
    start: Spread
    end: Spread


@record_types.register
@dataclass(frozen=True)
class TimelineRecord(RecordDocument):
    """Timeline of the traced steps under a plan.

    It is computed from `StepRecord`s. Files of earlier versions contain it as well.

    Attributes:
      function: name of the training function.
      plan: the plan's fingerprint.
      step: last step of the median.
      num_steps: number of steps, at least 1.
      spans: one per executed all-reduce, by start. A group that the pass could not merge has
        several.
      compute: seconds from the start of backward to the last gradient's production.
      backward: seconds from the start of backward to its end, communication included.

    Raises:
      ValueError: a field is out of its range; named.
    """

    function: str
    plan: str
    step: Count
    num_steps: Count
    spans: tuple[SpanRecord, ...]
    compute: Spread
    backward: Spread

    KIND: ClassVar[str] = "timeline"

    @classmethod
    def from_steps(cls, plan: Plan, steps: Sequence[StepRecord]) -> "TimelineRecord | None":
        """Computes median and quartiles over the steps with a measured computation.

        Steps with other all-reduces than most, such as one before a retrace, do not count.

        Args:
            plan: plan of the steps.
            steps: steps of one training function, in order.

        Returns:
            The timeline; None if no step counts.
        """
        timelines = [
            timeline for timeline in (step.timeline(plan) for step in steps) if timeline is not None
        ]
        if not timelines:
            return None
        shapes = [tuple((g.group, g.num_threads, g.num_bytes) for g in t.groups) for t in timelines]
        most_common = statistics.mode(shapes)
        counted = [t for t, shape in zip(timelines, shapes, strict=True) if shape == most_common]
        spans = tuple(
            SpanRecord(
                *shape,
                ready=Spread.from_values([t.groups[i].ready_seconds for t in counted]),
                start=Spread.from_values([t.groups[i].start_seconds for t in counted]),
                end=Spread.from_values([t.groups[i].end_seconds for t in counted]),
            )
            for i, shape in enumerate(most_common)
        )
        return cls(
            function=steps[-1].function,
            plan=plan.fingerprint,
            step=steps[-1].step,
            num_steps=len(counted),
            spans=spans,
            compute=Spread.from_values([t.compute_seconds for t in counted]),
            backward=Spread.from_values([t.backward_seconds for t in counted]),
        )
