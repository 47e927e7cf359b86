"""Pacing of a background job by its measured cost to the foreground's steps.

Steps form cycles, the same on every rank. A cycle begins with steps without the background, which
measure the baseline. The background then runs for several steps and is paused for the others. The
cost of a run is judged by adjacent steps without the background. Changes of machine speed then
count equally often for and against the background. A budget accumulates the limit's allowance minus
the cost of runs, so that the limit holds for all steps together.

Ranks wait for each other, so every rank's steps include the cost of all backgrounds. Runs begin at
the same steps on all ranks, and the longest run bears the cost of all runs.
"""

import statistics
from collections.abc import Iterable

from tf_libra.internal import validation

CYCLE = 16
# Steps without the background at the start of a cycle.
NUM_BASELINE_STEPS = 4
_MOST = CYCLE - NUM_BASELINE_STEPS
# Assumed loss of an overlapped step before a measurement, in baseline steps as all costs.
_UNKNOWN_COST = 1.0
# Weight that the known cost keeps per run.
_DECAY = 0.8
# Share of the limit to use; the rest allows for errors of the measured loss.
_AIM = 0.9
# Cycles that spread the surplus or deficit of the budget, so that one disturbed cycle moves little.
_HORIZON = 8
# Largest accepted loss of one step. A larger loss may come from another program; it is accepted if
# it repeats.
_BELIEVED, _MORE = 4.0, 4.0
# Accepted deviation of a baseline step from the median of its neighbours.
_LONGEST_BASELINE = 2.0


class Throttle:
    """Pacing decision for each step: the background may run, or is paused."""

    def __init__(self, max_slowdown: float) -> None:
        """Start with runs of single steps, as the cost is unknown.

        Args:
            max_slowdown: limit on the mean slowdown of all steps, as a share, above 0.

        Raises:
            ValueError: the limit is out of its range.
        """
        self.max_slowdown = validation.real("max_slowdown", max_slowdown, above=0)
        self._position = 0
        self._run = 0  # overlapped steps of this cycle
        self._owed = 0.0  # fractional steps carried over from earlier cycles
        self._budget = 0.0
        self._cost = [_UNKNOWN_COST, 1.0]  # loss and number of overlapped steps, both decaying
        self._believed = _BELIEVED
        # Seconds of steps since the last judgement, apart from baseline steps before the run.
        self._before: list[float] = []
        self._baseline: list[float] = []
        self._overlapped: list[float] = []
        self._after: list[float] = []  # the one step that still includes part of the run
        self._was_overlapped = False
        self._lost, self._num_evaluated = 0.0, 0
        self._num_overlapped, self._num_steps = 0, 0

    @property
    def duty(self) -> float:
        """Overlapped share of this cycle's steps, apart from baseline steps."""
        return self._run / _MOST

    @property
    def slowdown(self) -> float | None:
        """Mean slowdown of overlapped steps so far; None if unknown."""
        return self._lost / self._num_evaluated if self._num_evaluated else None

    @property
    def evaluated(self) -> tuple[int, float]:
        """Number of judged overlapped steps and their total loss in baseline steps."""
        return self._num_evaluated, self._lost

    @property
    def always(self) -> float:
        """Largest loss of an overlapped step, as a share, that allows full duty."""
        return self._allowance / _MOST

    @property
    def _allowance(self) -> float:
        """Allowed loss of a cycle, in baseline steps."""
        return _AIM * self.max_slowdown * CYCLE

    @property
    def is_planned(self) -> bool:
        """True if a cycle's run has just been planned."""
        return self._position == NUM_BASELINE_STEPS

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return self._num_steps

    @property
    def share_of_steps(self) -> float:
        """Overlapped share of the steps so far."""
        return self._num_overlapped / self._num_steps if self._num_steps else 0.0

    @property
    def runs(self) -> bool:
        """True if the background may run in the next step."""
        return 0 <= self._position - NUM_BASELINE_STEPS < self._run

    def restart(self) -> None:
        """Forget the known cost after a change of the scheduling mode."""
        self._cost = [_UNKNOWN_COST, 1.0]
        self._run, self._owed = 0, 0.0

    def record(self, seconds: float, is_steady: bool = True) -> None:
        """Record the seconds of the next step; `is_steady` is False for an untypical step."""
        overlapped = self.runs
        self._num_steps += 1
        self._num_overlapped += overlapped
        if is_steady:
            if overlapped:
                self._overlapped.append(seconds)
            elif self._was_overlapped:
                self._after.append(seconds)
            # The first may include a part of another rank's run.
            elif 0 < self._position < NUM_BASELINE_STEPS:
                self._baseline.append(seconds)
        self._was_overlapped = overlapped
        self._position = (self._position + 1) % CYCLE
        if self._position == NUM_BASELINE_STEPS:
            self._evaluate()
            self._plan()

    def _evaluate(self) -> None:
        """Judge the cost of the last cycle's run."""
        near = [*self._before, *self._baseline]
        if near and self._overlapped:
            longest = _LONGEST_BASELINE * statistics.median(near)
            baseline = max(statistics.fmean(min(seconds, longest) for seconds in near), 1e-9)
            lost = sum(self._lost_by([*self._overlapped, *self._after], baseline))
            self._budget -= lost
            count = len(self._overlapped)
            self._cost = [_DECAY * self._cost[0] + lost, _DECAY * self._cost[1] + count]
            self._lost += lost
            self._num_evaluated += count
        self._before, self._baseline, self._overlapped, self._after = self._baseline, [], [], []

    def _lost_by(self, steps: Iterable[float], baseline: float) -> list[float]:
        """Return the accepted losses of steps."""
        lost = [seconds / baseline - 1 for seconds in steps]
        believed = self._believed
        if max(lost) > believed:
            self._believed *= _MORE
        elif max(lost) < believed / _MORE:
            self._believed = max(believed / _MORE, _BELIEVED)
        return [min(share, believed) for share in lost]

    def _plan(self) -> None:
        """Plan the number of overlapped steps of this cycle."""
        allowance = self._allowance
        cost = self._cost[0] / self._cost[1]
        left = self._budget - self._owed * cost  # carried-over steps count as spent
        gives = max(left / _HORIZON + allowance, 0.0)
        wanted = gives / cost if gives < _MOST * cost else _MOST * (gives > 0)
        owed = min(self._owed + wanted, float(_MOST))
        self._run = int(owed)
        self._owed = owed - self._run
        most = _HORIZON * allowance + self._owed * max(cost, 0.0)
        self._budget = min(self._budget + allowance, most)
