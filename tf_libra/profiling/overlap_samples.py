"""Overlap samples and the measured timeline of a step, from the telemetry of its all-reduces.

Pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from tf_libra.cost_model import OverlapSample
from tf_libra.internal import formatting
from tf_libra.profiling.gradient_timing import StepProduction
from tf_libra.specs.backward_profile import BackwardProfile

if TYPE_CHECKING:
    from tf_libra.specs.telemetry import AllReduceRecord

# Error of clocks and event ends. An all-reduce that starts earlier than its tensors by more than
# this belongs to another step than the trace.
_CLOCK_TOLERANCE_NS = 200_000
# Shorter overlaps lie within the error of the two clocks and count as none.
_SHORTEST_OVERLAP_NS = 20_000


@dataclasses.dataclass(frozen=True)
class SampledStep:
    """Samples of one traced step.

    Attributes:
      samples: one per used all-reduce, in order of start.
      dropped: (group, reason) of every unused all-reduce.
    """

    samples: tuple[OverlapSample, ...]
    dropped: tuple[tuple[int, str], ...]


@dataclasses.dataclass(frozen=True)
class MeasuredGroup:
    """Executed all-reduce; seconds since the start of backward.

    Attributes:
      group: index in the plan.
      num_threads: communication threads.
      num_bytes: size.
      ready_seconds: production time of its last tensor.
      start_seconds: start of the all-reduce.
      end_seconds: end of the all-reduce.
    """

    group: int
    num_threads: int
    num_bytes: int
    ready_seconds: float
    start_seconds: float
    end_seconds: float


@dataclasses.dataclass(frozen=True)
class MeasuredTimeline:
    """Measured timeline of a step, for comparison with a plan's predicted timeline.

    Attributes:
      groups: all-reduces in order of start.
      compute_seconds: time from the start of backward to the last production.
      backward_seconds: time from the start of backward to the later of the last production and the
        end of the last all-reduce (LIBRA, Eq. 7).
    """

    groups: tuple[MeasuredGroup, ...]
    compute_seconds: float
    backward_seconds: float


def work_done(
    times_ns: ArrayLike, production: StepProduction, profile: BackwardProfile
) -> np.ndarray:
    """Returns the backward computation done by given times, W(t), in contention-free seconds.

    At a production, W has grown by the tensor's `compute_seconds`; between two productions it grows
    linearly (LIBRA's assumption of uniform processing speed, Eqs. 9-11). W is 0 until the start of
    backward, never decreases, and is the profile's sum from the last production on.

    Args:
      times_ns: times, any shape.
      production: production times of the step.
      profile: profile of the same tensors.

    Returns:
      Seconds, in the shape of `times_ns`.

    Raises:
      ValueError: profile and production have different tensors.
    """
    compute_seconds = {tensor.name: tensor.compute_seconds for tensor in profile.tensors}
    if compute_seconds.keys() != set(production.names):
        odd = sorted(compute_seconds.keys() ^ set(production.names))
        raise ValueError(f"profile and production differ in {len(odd)} tensors, first {odd[0]!r}")
    # A float holds nanoseconds since the start of backward exactly, not those since 1970.
    produced = np.maximum(production.produced_ns - production.backward_start_ns, 0)
    order = np.argsort(produced, kind="stable")
    work = np.cumsum([compute_seconds[production.names[i]] for i in order])
    # Of tensors produced at the same time, the last one has the total.
    last = np.append(np.diff(produced[order]) > 0, True)
    at, done = produced[order][last], work[last]
    if at[0] > 0:
        at, done = np.append(0, at), np.append(0.0, done)
    since = np.asarray(times_ns, dtype=np.int64) - production.backward_start_ns
    return np.interp(since, at, done, left=0.0)


def exclude_waiting(records: Sequence[AllReduceRecord]) -> tuple[AllReduceRecord, ...]:
    """Moves the start of each all-reduce to the estimated arrival of the other ranks.

    A rank that is ahead starts an all-reduce and waits; no byte moves and no thread works. The wait
    is the time to the first byte, minus the shortest such time of all records. A rank that is
    behind finds the first byte of every peer, whatever the size and the plan. The records of one
    group alone would leave what a rank is ahead in each of them, and more of it the fewer they are.
    So pass the records of many steps in one call.

    Args:
      records: records of any steps and plans.

    Returns:
      The records in the same order, with later `started_ns`.
    """
    until_first_byte_ns = [record.first_byte_ns - record.started_ns for record in records]
    # Negative: no byte was awaited.
    shortest_ns = min((each for each in until_first_byte_ns if each >= 0), default=0)
    return tuple(
        record
        if until_ns < 0
        else dataclasses.replace(record, started_ns=record.first_byte_ns - shortest_ns)
        for record, until_ns in zip(records, until_first_byte_ns, strict=True)
    )


def split_at_end_of_computation(
    start: float,
    stop: float,
    computed: float,
    done: Callable[[float, float], float],
    shortest: float,
) -> tuple[float, float, float]:
    """Splits an all-reduce at the end of computation (LIBRA, Eqs. 9-11).

    Args:
      start: start of the all-reduce; all times are of one clock, in one unit.
      stop: end of the all-reduce.
      computed: end of computation.
      done: returns contention-free seconds of computation between two times.
      shortest: an overlap up to this length lies within the clocks' error and counts as none.

    Returns:
      Seconds of overlapping computation, duration of the overlap, duration without overlap.
    """
    overlap = min(stop, computed) - start
    if overlap <= shortest:
        return 0.0, 0, stop - start
    return max(done(start, start + overlap), 0.0), overlap, stop - start - overlap


def overlap_samples(
    records: Sequence[AllReduceRecord], production: StepProduction, profile: BackwardProfile
) -> SampledStep:
    """Turns the all-reduces of one traced step into samples for the fit.

    Each all-reduce is split at the last production. It overlapped with computation before and ran
    alone after it.

    Args:
      records: all-reduces of the step.
      production: production times of the step.
      profile: contention-free profile of the same tensors.

    Raises:
      ValueError: profile and production have different tensors.
    """
    samples: list[OverlapSample] = []
    dropped: list[tuple[int, str]] = []
    for record in sorted(records, key=lambda r: (r.started_ns, r.group)):
        reason = _unusable(record, production)
        if reason:
            dropped.append((record.group, reason))
            continue
        compute_seconds, overlap_ns, residual_ns = split_at_end_of_computation(
            record.started_ns,
            record.finished_ns,
            production.last_ns,
            lambda start, stop: float(np.diff(work_done([start, stop], production, profile))[0]),
            _SHORTEST_OVERLAP_NS,
        )
        samples.append(
            OverlapSample(
                num_bytes=record.num_bytes,
                num_threads=record.num_threads,
                compute_seconds=compute_seconds,
                overlap_seconds=overlap_ns * 1e-9,
                residual_seconds=residual_ns * 1e-9,
                step=record.step,
                group=record.group,
                plan=record.plan,
            )
        )
    return SampledStep(tuple(samples), tuple(dropped))


def measured_timeline(
    records: Sequence[AllReduceRecord], production: StepProduction
) -> MeasuredTimeline:
    """Builds the timeline of the all-reduces of one traced step.

    Raises:
      ValueError: a record holds a tensor without a production time.
    """
    start_ns = production.backward_start_ns
    produced_ns = dict(zip(production.names, production.produced_ns.tolist(), strict=True))
    groups = []
    for record in sorted(records, key=lambda r: (r.started_ns, r.group)):
        unknown = [name for name in record.tensor_names if name not in produced_ns]
        if unknown:
            raise ValueError(f"group {record.group}: no production time of {unknown[0]!r}")
        ready_ns = max((produced_ns[name] for name in record.tensor_names), default=start_ns)
        groups.append(
            MeasuredGroup(
                group=record.group,
                num_threads=record.num_threads,
                num_bytes=record.num_bytes,
                ready_seconds=max(ready_ns - start_ns, 0) * 1e-9,
                start_seconds=(record.started_ns - start_ns) * 1e-9,
                end_seconds=(record.finished_ns - start_ns) * 1e-9,
            )
        )
    compute_seconds = max(production.last_ns - start_ns, 0) * 1e-9
    return MeasuredTimeline(
        tuple(groups),
        compute_seconds,
        max([compute_seconds, *(group.end_seconds for group in groups)]),
    )


def _unusable(record: AllReduceRecord, production: StepProduction) -> str:
    """Returns why a record gives no sample; empty if it gives one."""
    if record.num_bytes == 0:
        return "no bytes"
    if record.finished_ns <= record.started_ns:
        return "took no time"
    if record.started_ns < production.backward_start_ns:
        return "started before backward: not of this step"
    produced_ns = dict(zip(production.names, production.produced_ns.tolist(), strict=True))
    for name in record.tensor_names:
        if name not in produced_ns:
            return f"no production time of {name!r}"
        early_ns = produced_ns[name] - record.started_ns
        if early_ns > _CLOCK_TOLERANCE_NS and name not in production.inferred:
            return f"started {formatting.time(early_ns * 1e-9)} before its {name!r} was produced"
    return ""
