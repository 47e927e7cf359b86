"""When the all-reduces of a plan's usual step began and ended, and when the step did.

Plans take turns in rounds. A machine that others use, too, may be a third slower for a second or
two, and so in some rounds; what is measured in a round is therefore taken at the usual pace. Where
the pace changes within a round, it shows in the time until a step's first gradients are ready,
before anything is all-reduced: for one plan that is the same in all its steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import AllReduceRecord

# Of fewer plans nothing tells a slow round from a slow plan's step.
_FEWEST_PLANS = 3
# A step's own pace is the median over so many steps around it, since single ones are disturbed for
# other reasons, and counts where it differs by so much from the usual.
_AROUND, _NOTABLE = 5, 0.12


@dataclass(frozen=True, eq=False)
class TimedStep:
    """One untraced step.

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
      ready: when the engine had each group's gradients, seconds since the step's start, [groups].
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
    out. A group of no bytes is never launched: its span and its readiness are set to the end of the
    group before.

    Args:
      steps: one of every plan in each round, in the order in which they ran.
    """
    stamped = [_stamps(step) for step in steps]
    by_plan: dict[str, list[int]] = {}
    for index, step in enumerate(steps):
        by_plan.setdefault(step.plan.fingerprint, []).append(index)
    own = _own_paces(list(by_plan.values()), stamped)
    paces = _paces([[steps[i].seconds / own[i] for i in of_plan] for of_plan in by_plan.values()])
    found = []
    for of_plan in by_plan.values():
        whole = [
            (steps[i].seconds / pace / own[i], stamps / pace / own[i])
            for i, pace in zip(of_plan, paces, strict=False)
            if (stamps := stamped[i]) is not None
        ]
        if whole:
            seconds, stamps = (np.median(column, axis=0) for column in zip(*whole, strict=True))
            spans, ready = stamps[:, :2], stamps[:, 2]
            plan = steps[of_plan[0]].plan
            found.append(StepTimes(plan, float(seconds), spans, ready, len(whole)))
    return found


def _own_paces(
    by_plan: Sequence[Sequence[int]], stamped: Sequence[NDArray[np.float64] | None]
) -> NDArray[np.float64]:
    """Returns how many times as long as usual all took in each step; 1 if hardly more or less.

    A step's first group is compared with the soonest that it was ready under the same plan: no
    profile predicts to a tenth how soon that is in comparison with other plans.

    Args:
      by_plan: the places of each plan's steps.
      stamped: `_stamps` of all steps.
    """
    ratios: dict[int, float] = {}
    for of_plan in by_plan:
        ready = {
            index: float(stamps[0, 2])
            for index in of_plan
            if (stamps := stamped[index]) is not None and stamps[0, 2] > 0
        }
        ratios |= {index: seconds / min(ready.values()) for index, seconds in ready.items()}
    paces = np.ones(len(stamped))
    if not ratios:
        return paces
    places = sorted(ratios)
    times = np.array([ratios[index] for index in places])
    around = np.pad(times, _AROUND // 2, mode="reflect" if len(times) > _AROUND else "edge")
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(around, _AROUND), axis=1)
    smooth = smooth / np.median(smooth)
    paces[places] = np.where(np.abs(smooth - 1) < _NOTABLE, 1.0, smooth)
    return paces


def _paces(by_plan: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Returns each round's step time relative to the usual one, as the median over the plans."""
    rounds = max(map(len, by_plan), default=0)
    # Sampling that ended early leaves plans with one round less; their usual step is unknown.
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
