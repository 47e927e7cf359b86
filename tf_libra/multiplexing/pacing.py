"""How much a background job may run, going by what it costs the foreground's steps.

Steps are counted in cycles, the same on every rank that counts the same steps. A cycle begins with
steps in which the background is paused, which say what a step takes without it; then comes a run of
steps beside which it goes on; in the rest it is paused again. What a run has cost is judged by the
steps alone just before and just after it: where a machine changes its pace by itself, that speaks
for the background as often as against it. A budget is kept of what the limit gives and what runs
cost, so that the limit holds for all steps together, and early ones are not forgotten.

Ranks wait for each other, so each goes by steps that hold what all backgrounds cost. Their runs
begin at the same steps: the rank that has the longest ones pays for all.
"""

import statistics
from collections.abc import Iterable

from tf_libra import checks

CYCLE = 16
# Steps without the background, at the start of a cycle.
ALONE = 4
_MOST = CYCLE - ALONE
# What a step beside it is believed to lose before one was seen, like all costs in steps alone.
_UNKNOWN_COST = 1.0
# Of what is known of the cost, what counts after one more run.
_KEPT = 0.8
# Of the limit: what is lost is not known exactly.
_AIM = 0.9
# In so many cycles what is left of the budget, or overdrawn, is made up for: slowly, so that one
# disturbed cycle moves little.
_HORIZON = 8
# What one step is believed to have lost. One that has lost more may have been disturbed by another;
# where that happens again, more is believed.
_BELIEVED, _MORE = 4.0, 4.0
# What a step alone is believed to take, by the median of those near it.
_LONGEST_ALONE = 2.0


class Pacing:
    """Decides, step by step, whether the background may run."""

    def __init__(self, max_slowdown: float) -> None:
        """Nothing is known of what the background costs, so it begins with single steps.

        Args:
            max_slowdown: by how much steps may be longer than without the background, as a share,
                in the mean over all steps; above 0.

        Raises:
            ValueError: it is out of its range.
        """
        self.max_slowdown = checks.real("max_slowdown", max_slowdown, above=0)
        self._place = 0
        self._run = 0  # how many steps of this cycle it runs beside
        self._owed = 0.0  # what earlier cycles would have let it run beyond whole steps
        self._budget = 0.0
        self._cost = [_UNKNOWN_COST, 1.0]  # lost, beside how many steps: both fade
        self._believed = _BELIEVED
        # Seconds of steps since the last judgement, but for alone steps before the run.
        self._before: list[float] = []
        self._alone: list[float] = []
        self._beside: list[float] = []
        self._after: list[float] = []  # the one step that still holds something of the run
        self._was_beside = False
        self._lost, self._num_judged = 0.0, 0
        self._num_beside, self._num_steps = 0, 0

    @property
    def duty(self) -> float:
        """The share of this cycle's steps that are not to be alone beside which it runs."""
        return self._run / _MOST

    @property
    def slowdown(self) -> float | None:
        """By how much steps beside it were longer so far, in the mean; None before it is known."""
        return self._lost / self._num_judged if self._num_judged else None

    @property
    def judged(self) -> tuple[int, float]:
        """How many steps beside it were judged, and what they lost in all, in steps alone."""
        return self._num_judged, self._lost

    @property
    def always(self) -> float:
        """What a step beside it may lose, as a share of one alone, for it to run in all it may."""
        return self._allowance / _MOST

    @property
    def _allowance(self) -> float:
        """What a cycle's steps may lose, in steps alone."""
        return _AIM * self.max_slowdown * CYCLE

    @property
    def is_planned(self) -> bool:
        """Whether a cycle's run has just been planned."""
        return self._place == ALONE

    @property
    def num_steps(self) -> int:
        """How many steps there were."""
        return self._num_steps

    @property
    def share_of_steps(self) -> float:
        """In how many of the steps so far it ran."""
        return self._num_beside / self._num_steps if self._num_steps else 0.0

    @property
    def runs(self) -> bool:
        """Whether it may run in the next step."""
        return 0 <= self._place - ALONE < self._run

    def begins_anew(self) -> None:
        """From now on it runs in another manner: what it costs is not known any more."""
        self._cost = [_UNKNOWN_COST, 1.0]
        self._run, self._owed = 0, 0.0

    def took(self, seconds: float, usual: bool = True) -> None:
        """The next step took so long; `usual` unless it says nothing of others."""
        beside = self.runs
        self._num_steps += 1
        self._num_beside += beside
        if usual:
            if beside:
                self._beside.append(seconds)
            elif self._was_beside:
                self._after.append(seconds)
            elif 0 < self._place < ALONE:  # the first may hold something of another rank's run
                self._alone.append(seconds)
        self._was_beside = beside
        self._place = (self._place + 1) % CYCLE
        if self._place == ALONE:
            self._judge()
            self._plan()

    def _judge(self) -> None:
        """What the last cycle's run has cost."""
        near = [*self._before, *self._alone]
        if near and self._beside:
            longest = _LONGEST_ALONE * statistics.median(near)
            alone = max(statistics.fmean(min(seconds, longest) for seconds in near), 1e-9)
            lost = sum(self._lost_by([*self._beside, *self._after], alone))
            self._budget -= lost
            count = len(self._beside)
            self._cost = [_KEPT * self._cost[0] + lost, _KEPT * self._cost[1] + count]
            self._lost += lost
            self._num_judged += count
        self._before, self._alone, self._beside, self._after = self._alone, [], [], []

    def _lost_by(self, steps: Iterable[float], alone: float) -> list[float]:
        """What steps have lost, as far as that is believed."""
        lost = [seconds / alone - 1 for seconds in steps]
        believed = self._believed
        if max(lost) > believed:
            self._believed *= _MORE
        elif max(lost) < believed / _MORE:
            self._believed = max(believed / _MORE, _BELIEVED)
        return [min(one, believed) for one in lost]

    def _plan(self) -> None:
        """How long the background runs in this cycle."""
        allowance = self._allowance
        cost = self._cost[0] / self._cost[1]
        left = self._budget - self._owed * cost  # what is owed is as good as spent
        gives = max(left / _HORIZON + allowance, 0.0)
        wanted = gives / cost if gives < _MOST * cost else _MOST * (gives > 0)
        owed = min(self._owed + wanted, float(_MOST))
        self._run = int(owed)
        self._owed = owed - self._run
        most = _HORIZON * allowance + self._owed * max(cost, 0.0)
        self._budget = min(self._budget + allowance, most)
