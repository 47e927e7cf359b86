"""Recorder of one training function on one rank, for TensorBoard and reports.

A write error does not end training: the recorder logs it once and stops writing.
"""

import dataclasses
import logging
import socket
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import Error as ProtobufError

from tf_libra.autotune import TrialResult
from tf_libra.profiling.overlap_samples import MeasuredTimeline
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.event_writer import RecordWriter
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.records.record_types import Record
from tf_libra.reporting.records.step import StepRecord
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import AllReduceRecord

# Number of steps written one by one; later steps are written as medians over some seconds.
_SINGLE_STEPS = 500
_BLOCK_SECONDS = 5.0


class Recorder:
    """Writer of one training function's records on one rank."""

    def __init__(
        self, logdir: Path, rank: int, function: str, log: logging.Logger, max_tuning_steps: int = 0
    ) -> None:
        """Creates the event file; on failure, log it and write nothing.

        Args:
            logdir: the log directory.
            rank: this rank.
            function: name of the training function.
            log: logger of write errors.
            max_tuning_steps: budget of steps before a plan is active; 0 without tuning.
        """
        self._max_tuning_steps = max_tuning_steps
        self._rank, self._function, self._log = rank, function, log
        self._plan: Plan | None = None
        self._num_steps = 0
        self._block: list[float] = []
        self._exchanges: tuple[tuple[int, int], ...] = ()
        self._writer: RecordWriter | None = None
        self._guarded(partial(self._open, logdir, rank))

    def record_plan(self, record: PlanRecord) -> None:
        """Records an activated plan; only rank 0 knows and writes its inputs."""
        self._plan = record.plan
        if self._rank == 0:
            self._write(record.step, record)

    def record(self, record: Record) -> None:
        """Records the activity of model-parallel ranks, on rank 0."""
        self._write(record.step, record)

    def record_graph(self, step: int, draw: Callable[[], Any]) -> None:
        """Records the step's graph under the active plan, a `GraphDef` from `draw`."""
        if self._writer is None:
            return
        try:
            content = draw().SerializeToString()
        except (ValueError, ProtobufError, tf.errors.OpError) as error:  # for example over 2 GB
            self._log.warning("logdir: cannot write the graph of the step: %s", error)
            return
        self._guarded(partial(self._writer.graph, step, content))

    def add_clock_exchanges(self, exchanges: tuple[tuple[int, int], ...]) -> None:
        """Adds a clock exchange of all ranks to the next step's record."""
        self._exchanges = exchanges

    def record_step_seconds(self, step: int, seconds: float, is_steady: bool) -> None:
        """Records a step's seconds; `is_steady` is False for a plan's first or a traced step."""
        if self._rank > 0:
            return
        most, self._max_tuning_steps = self._max_tuning_steps, 0
        if most and self._plan is None:
            self._write_history(step, {record_types.MAX_TUNING_STEPS: most})
        if not is_steady:
            self._write_history(step, {record_types.DISTURBED_STEP_SECONDS: seconds})
            return
        self._num_steps += 1
        self._block.append(seconds)
        if self._num_steps <= _SINGLE_STEPS or sum(self._block) >= _BLOCK_SECONDS:
            self._write_history(step, {record_types.STEP_SECONDS: statistics.median(self._block)})
            self._block.clear()

    def record_drift(self, step: int, measured: float, expected: float, is_back: bool) -> None:
        """Records the begin of a drift, or its end (`is_back`), with both step times."""
        if self._rank == 0:
            name = (
                record_types.RETURNED_STEP_SECONDS if is_back else record_types.DRIFTED_STEP_SECONDS
            )
            self._write_history(
                step, {name: measured, record_types.EXPECTED_STEP_SECONDS: expected}
            )

    def record_step(
        self,
        step: int,
        called_ns: tuple[int, int],
        all_reduces: Sequence[AllReduceRecord],
        observation: TrialResult | None = None,
        timeline: MeasuredTimeline | None = None,
        gathers: Sequence[AllReduceRecord] = (),
    ) -> None:
        """Records a step under the plan; `observation` and `timeline` if it was traced."""
        if self._plan is None or self._writer is None:
            return
        production = None if observation is None else observation.production
        record = StepRecord.from_execution(
            self._function,
            self._plan,
            self._rank,
            step,
            called_ns,
            all_reduces,
            production,
            gathers,
        )
        exchanges, self._exchanges = self._exchanges, ()
        host = socket.gethostname()
        self._write(step, dataclasses.replace(record, exchanges_ns=exchanges, host=host))
        if timeline is None:
            return
        self._write_history(
            step,
            {
                record_types.BACKWARD_SECONDS: timeline.backward_seconds,
                record_types.RESIDUAL_SECONDS: timeline.backward_seconds - timeline.compute_seconds,
            },
        )

    def close(self) -> None:
        """Writes all records that are still in memory."""
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
        except (OSError, tf.errors.OpError) as error:  # for example a full disk
            self._writer = None
            self._log.warning("logdir: no more records are written, after an error: %s", error)
