"""When the all-reduces of a plan's usual step began and ended, and when the step did.

Plans take turns in rounds. A machine that others use, too, may be a third slower for a second or
two, and so in some rounds; what is measured in a round is therefore taken at the usual pace.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_libra.model.plan import Plan
from tf_libra.model.telemetry import AllReduceRecord

# Of fewer plans nothing tells a slow round from a slow plan's step.
_FEWEST_PLANS = 3


@dataclass(frozen=True, eq=False)
class TimedStep:
    """One step that nobody traced.

    Attributes:
      plan: what it ran under.
      called_ns: when it was called and when it returned, nanoseconds since the epoch.
      records: its all-reduces.
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
    """The usual step of a plan: medians over its steps.

    Attributes:
      plan: what they ran under.
      seconds: of the step.
      spans: start and end of each group's all-reduce, seconds since the step's start, [groups, 2].
        It starts when the engine has it and is done with what came before it on its stream.
      ready: when the engine had each group's gradients, likewise, [groups].
      num_steps: that it is the median of.
    """

    plan: Plan
    seconds: float
    spans: NDArray[np.float64]
    ready: NDArray[np.float64]
    num_steps: int


def step_times(steps: Sequence[TimedStep]) -> list[StepTimes]:
    """The usual step of every plan, in the order in which plans were first seen.

    Steps that do not show every group of bytes, as those that only accumulate gradients, are left
    out. A group of no bytes is never launched: its span is where the group before ended, and nobody
    knows when it was ready: as its span.

    Args:
      steps: one of every plan in each round.
    """
    by_plan: dict[str, list[TimedStep]] = {}
    for step in steps:
        by_plan.setdefault(step.plan.fingerprint, []).append(step)
    paces = _paces([[step.seconds for step in of_plan] for of_plan in by_plan.values()])
    found = []
    for of_plan in by_plan.values():
        whole = [
            (step.seconds / pace, stamps / pace)
            for step, pace in zip(of_plan, paces, strict=False)
            if (stamps := _stamps(step)) is not None
        ]
        if whole:
            seconds, stamps = (np.median(column, axis=0) for column in zip(*whole, strict=True))
            spans, ready = stamps[:, :2], stamps[:, 2]
            found.append(StepTimes(of_plan[0].plan, float(seconds), spans, ready, len(whole)))
    return found


def _paces(by_plan: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """How many times as long as usual steps took in every round, in the median over the plans."""
    rounds = max(map(len, by_plan), default=0)
    # What was ended early has plans of one round less; of those nobody knows what is usual.
    complete = [seconds for seconds in by_plan if len(seconds) == rounds]
    if len(complete) < _FEWEST_PLANS:
        return np.ones(rounds)
    usual = np.median(complete, axis=1)
    return np.asarray(np.median(np.array(complete) / usual[:, None], axis=0))


def _stamps(step: TimedStep) -> NDArray[np.float64] | None:
    """Start, end and readiness of groups, [groups, 3]; None where an all-reduce is missing."""
    by_group = {record.group: record for record in step.records}
    free_ns = dict.fromkeys((group.stream for group in step.plan.groups), step.called_ns[0])
    stamps = []
    for index, group in enumerate(step.plan.groups):
        record = by_group.get(index)
        start_ns = stop_ns = ready_ns = free_ns[group.stream]
        if record is not None:
            start_ns, stop_ns = max(start_ns, record.enqueued_ns), record.finished_ns
            ready_ns = record.enqueued_ns
        elif step.plan.group_bytes[index]:
            return None
        stamps.append((start_ns, stop_ns, ready_ns))
        free_ns[group.stream] = stop_ns
    return np.asarray((np.array(stamps, np.int64) - step.called_ns[0]) * 1e-9, np.float64)
