"""Steady-state step times: start and end of a plan's all-reduces and of its step.

Plans alternate in rounds. A shared machine may be a third slower for a second or two, so for some
rounds; their times are corrected by the round's slowdown. A slowdown within a round shows in the
time until a step's first gradients are ready, which is the same in all steps of a plan, as far as
the step itself is longer: slower computation does not lengthen a step that waits for the network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tf_libra.profiling.overlap_samples import exclude_waiting
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import AllReduceRecord

# With fewer plans a slow round cannot be separated from the step of a slow plan.
_MIN_PLANS = 3
# A step's slowdown is the median over this many adjacent steps, since other effects disturb single
# steps. Smaller relative slowdowns are ignored.
_WINDOW, _MIN_SLOWDOWN = 5, 0.12


@dataclass(frozen=True, eq=False)
class TimedStep:
    """Untraced step.

    Attributes:
      plan: plan of the step.
      called_ns: start and end of the step's call, nanoseconds since the epoch.
      records: all-reduces of the step.
    """

    plan: Plan
    called_ns: tuple[int, int]
    records: tuple[AllReduceRecord, ...]

    @property
    def seconds(self) -> float:
        """Wall seconds of the step."""
        return (self.called_ns[1] - self.called_ns[0]) * 1e-9


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Steady-state step of a plan: medians over its steps; seconds since the step's start.

    Attributes:
      plan: plan of the steps.
      seconds: seconds of the step.
      spans: start and end of each group's all-reduce, [groups, 2]. An all-reduce starts when the
        engine has it and its stream is free.
      ready: time at which the engine had each group's gradients, [groups].
      sending: seconds of each group's all-reduce after the last rank had arrived, [groups].
      num_steps: number of steps in the median.
    """

    plan: Plan
    seconds: float
    spans: NDArray[np.float64]
    ready: NDArray[np.float64]
    sending: NDArray[np.float64]
    num_steps: int


def step_times(steps: Sequence[TimedStep]) -> list[StepTimes]:
    """Returns the steady-state step of every plan, in the order of the plans' first steps.

    Steps that lack the record of a group with bytes, such as those that only accumulate gradients,
    are omitted. A group of 0 bytes is never launched: it starts and ends with the previous group.

    Args:
      steps: rounds of one step per plan, in chronological order.
    """
    arrived_ns = _arrivals([record for step in steps for record in step.records])
    stamped = [_stamps(step, arrived_ns) for step in steps]
    by_plan: dict[str, list[int]] = {}
    for index, step in enumerate(steps):
        by_plan.setdefault(step.plan.fingerprint, []).append(index)
    own = _step_slowdowns(list(by_plan.values()), stamped, [step.seconds for step in steps])
    slowdowns = _round_slowdowns(
        [[steps[i].seconds / own[i] for i in indices] for indices in by_plan.values()]
    )
    found = []
    for indices in by_plan.values():
        whole = [
            (steps[i].seconds / slowdown / own[i], stamps / slowdown / own[i])
            for i, slowdown in zip(indices, slowdowns, strict=False)
            if (stamps := stamped[i]) is not None
        ]
        if whole:
            seconds, stamps = (np.median(column, axis=0) for column in zip(*whole, strict=True))
            spans, ready, sending = stamps[:, :2], stamps[:, 2], stamps[:, 3]
            plan = steps[indices[0]].plan
            found.append(StepTimes(plan, float(seconds), spans, ready, sending, len(whole)))
    return found


def _step_slowdowns(
    by_plan: Sequence[Sequence[int]],
    stamped: Sequence[NDArray[np.float64] | None],
    seconds: Sequence[float],
) -> NDArray[np.float64]:
    """Returns the slowdown of each step; 1 if it is small.

    The readiness of a step's first group is compared with the earliest one under the same plan: a
    profile does not predict readiness under different plans accurately enough. A step's slowdown
    lies between its time over that of the plan's longest step and that over the shortest one's.

    Args:
      by_plan: indices of each plan's steps.
      stamped: `_stamps` of all steps.
      seconds: seconds of all steps.
    """
    ratios: dict[int, float] = {}
    for indices in by_plan:
        ready = {
            index: float(stamps[0, 2])
            for index in indices
            if (stamps := stamped[index]) is not None and stamps[0, 2] > 0
        }
        ratios |= {index: first / min(ready.values()) for index, first in ready.items()}
    slowdowns = np.ones(len(stamped))
    if not ratios:
        return slowdowns
    known = sorted(ratios)
    times = np.array([ratios[index] for index in known])
    padded = np.pad(times, _WINDOW // 2, mode="reflect" if len(times) > _WINDOW else "edge")
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(padded, _WINDOW), axis=1)
    smooth = smooth / np.median(smooth)
    slowdowns[known] = np.where(np.abs(smooth - 1) < _MIN_SLOWDOWN, 1.0, smooth)
    for indices in by_plan:
        own = np.array([seconds[index] for index in indices])
        bounds = own / own.max(), own / own.min()
        slowdowns[list(indices)] = np.clip(slowdowns[list(indices)], *bounds)
    return slowdowns


def _round_slowdowns(by_plan: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Returns each round's step time relative to the median round, as a median over the plans."""
    rounds = max(map(len, by_plan), default=0)
    # Sampling that ended early leaves some plans a round less.
    complete = [seconds for seconds in by_plan if len(seconds) == rounds]
    if len(complete) < _MIN_PLANS:
        return np.ones(rounds)
    medians = np.median(complete, axis=1)
    return np.asarray(np.median(np.array(complete) / medians[:, None], axis=0))


def _arrivals(records: Sequence[AllReduceRecord]) -> dict[tuple[int, int], int]:
    """Returns when the last rank arrived at each all-reduce, by step and sequence number."""
    return {
        (record.step, record.sequence): record.started_ns for record in exclude_waiting(records)
    }


def _stamps(
    step: TimedStep, arrived_ns: Mapping[tuple[int, int], int]
) -> NDArray[np.float64] | None:
    """Returns start, end, readiness and sending of groups, [groups, 4]; None without a record."""
    by_group: dict[int, AllReduceRecord] = {}
    for last in sorted(step.records, key=lambda record: record.sequence):
        # Tensors of several dtypes, or rows, take several all-reduces.
        first = by_group.get(last.group, last)
        by_group[last.group] = replace(
            first, enqueued_ns=last.enqueued_ns, finished_ns=last.finished_ns
        )
    free_ns = dict.fromkeys((group.stream for group in step.plan.groups), step.called_ns[0])
    stamps = []
    for index, group in enumerate(step.plan.groups):
        record = by_group.get(index)
        start_ns = stop_ns = ready_ns = free_ns[group.stream]
        sending_ns = 0
        if record is not None:
            start_ns, stop_ns = max(start_ns, record.enqueued_ns), record.finished_ns
            ready_ns = record.enqueued_ns
            sending_ns = stop_ns - min(
                max(start_ns, arrived_ns[record.step, record.sequence]), stop_ns
            )
        elif step.plan.group_bytes[index]:
            return None
        called_ns = step.called_ns[0]
        stamps.append((start_ns - called_ns, stop_ns - called_ns, ready_ns - called_ns, sending_ns))
        free_ns[group.stream] = stop_ns
    return np.asarray(np.array(stamps, np.int64) * 1e-9, np.float64)
