"""Keeps, of one training function on one rank, what TensorBoard and reports are to show.

It is told what happens and writes it down. A file that cannot be written is no reason to end the
training: it is said once, and nothing more is written.
"""

import dataclasses
import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import tensorflow as tf

from tf_libra.model.plan import Plan
from tf_libra.model.telemetry import AllReduceRecord
from tf_libra.profiling.samples import MeasuredTimeline
from tf_libra.records import values as records
from tf_libra.records.values import PlanRecord, Record, StepRecord, TimelineRecord
from tf_libra.records.writer import RecordWriter
from tf_libra.tuning import Observation

# What tracing steps of a run may cost. So that a long run leaves a bounded file, the next step is
# also not traced before the time since the plan came into force has grown by a tenth.
CHECK_SHARE = 0.01
_CHECK_GROWTH = 0.1
# The traced steps whose median is shown.
_REMEMBERED_TIMELINES = 50
# So many steps are written one by one; after them, medians over some seconds.
_SINGLE_STEPS = 500
_BLOCK_SECONDS = 5.0


class Recorder:
    """Writes the records of one training function on one rank."""

    def __init__(self, logdir: Path, rank: int, function: str, log: logging.Logger) -> None:
        """Makes the event file; where that fails, says so, and nothing is written."""
        self._rank, self._function, self._log = rank, function, log
        self._plan: Plan | None = None
        self._timelines: deque[MeasuredTimeline] = deque(maxlen=_REMEMBERED_TIMELINES)
        self._in_force_at = time.monotonic()
        self._check_due = float("inf")
        self._was_traced = False
        self._usual_seconds = 0.0
        self._num_steps = 0
        self._block: list[float] = []
        self._exchanges: tuple[tuple[int, int], ...] = ()
        self._writer: RecordWriter | None = None
        self._guarded(partial(self._open, logdir, rank))

    def in_force(self, record: PlanRecord) -> None:
        """A plan is in force. Rank 0 alone knows what it rests on, and writes that."""
        self._plan = record.plan
        self._timelines.clear()
        self._in_force_at = time.monotonic()
        if self._rank == 0:
            self._write(record.step, record)

    def clocks(self, exchanges: tuple[tuple[int, int], ...]) -> None:
        """All ranks have exchanged messages; goes with the next step's record."""
        self._exchanges = exchanges

    def took(self, step: int, seconds: float, usual: bool) -> None:
        """A step took so long; `usual` unless it was a plan's first or traced."""
        if self._rank > 0:
            return
        if self._was_traced:
            self._was_traced = False
            now = time.monotonic()
            cost = max(seconds - self._usual_seconds, 0.0)
            growth = _CHECK_GROWTH * (now - self._in_force_at)
            self._check_due = now + max(cost / CHECK_SHARE, growth)
        if not usual:
            self._write_history(step, {records.DISTURBED_STEP_SECONDS: seconds})
            return
        self._usual_seconds = seconds
        self._num_steps += 1
        self._block.append(seconds)
        if self._num_steps <= _SINGLE_STEPS or sum(self._block) >= _BLOCK_SECONDS:
            self._write_history(step, {records.STEP_SECONDS: statistics.median(self._block)})
            self._block.clear()

    @property
    def wants_check(self) -> bool:
        """Whether tracing the next step keeps within the share of time that may go to it."""
        return self._writer is not None and time.monotonic() >= self._check_due

    def executed(
        self,
        step: int,
        called_ns: tuple[int, int],
        all_reduces: Sequence[AllReduceRecord],
        observation: Observation | None = None,
        timeline: MeasuredTimeline | None = None,
    ) -> None:
        """A step under the plan has run; `observation` and `timeline` where it was traced."""
        if self._plan is None or self._writer is None:
            return
        self._was_traced = observation is not None
        production = None if observation is None else observation.production
        record = StepRecord.of(
            self._function, self._plan, self._rank, step, called_ns, all_reduces, production
        )
        exchanges, self._exchanges = self._exchanges, ()
        self._write(step, dataclasses.replace(record, exchanges_ns=exchanges))
        if timeline is None:
            return
        self._timelines.append(timeline)
        self._write(step, TimelineRecord.of(self._function, self._plan, step, self._timelines))
        self._write_history(
            step,
            {
                records.BACKWARD_SECONDS: timeline.backward_seconds,
                records.RESIDUAL_SECONDS: timeline.backward_seconds - timeline.compute_seconds,
            },
        )

    def close(self) -> None:
        """Writes out what is still in memory."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._guarded(writer.close)

    def _open(self, logdir: Path, rank: int) -> None:
        self._writer = RecordWriter(logdir, rank)

    def _write(self, step: int, record: Record) -> None:
        if self._writer is not None:
            self._guarded(partial(self._writer.record, step, record))

    def _write_history(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is not None:
            self._guarded(partial(self._writer.history, step, self._function, values))

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (OSError, tf.errors.OpError) as error:  # such as a disk that is full
            self._writer = None
            self._log.warning("logdir: TensorBoard is not written to any more: %s", error)
