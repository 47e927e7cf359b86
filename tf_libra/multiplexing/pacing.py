"""How much a background job may run, going by what it costs the foreground's steps.

Steps are counted in cycles, the same on every rank that counts the same steps: in the first of a
cycle's steps the background is paused, which says what a step takes without it; of the others, it
runs in as many as keep the foreground within the limit.
"""

import statistics
from collections import deque

from tf_libra import checks

CYCLE = 32
# Steps without the background, at the start of a cycle; and as many cycles are remembered.
_ALONE = 8
_REMEMBERED_CYCLES = 4
# Of the way to what the last cycle calls for: a disturbed cycle moves little.
_GAIN = 0.5
# Where the background may not run at all it is tried once in so many cycles.
_PROBE_EVERY = 8


class Pacing:
    """Decides, step by step, whether the background may run."""

    def __init__(self, max_slowdown: float) -> None:
        """The background may run at first as much as a cycle lets it.

        Args:
            max_slowdown: by how much steps may be longer than without the background, as a share,
                in the mean over a cycle; above 0.

        Raises:
            ValueError: it is out of its range.
        """
        self.max_slowdown = checks.real("max_slowdown", max_slowdown, above=0)
        self._duty = 1.0
        self._place = 0
        self._cycles_off = 0
        self._alone: deque[float] = deque(maxlen=_ALONE * _REMEMBERED_CYCLES)
        self._beside: list[float] = []
        self._slowdown: float | None = None
        self._num_beside = 0
        self._num_steps = 0

    @property
    def duty(self) -> float:
        """The share of the steps that are not to be alone in which the background may run."""
        return self._duty

    @property
    def slowdown(self) -> float | None:
        """By how much steps beside it were longer in the last cycle; None before it is known."""
        return self._slowdown

    @property
    def share_of_steps(self) -> float:
        """In how many of the steps so far it ran."""
        return self._num_beside / self._num_steps if self._num_steps else 0.0

    @property
    def runs(self) -> bool:
        """Whether it may run in the next step."""
        place = self._place - _ALONE
        return 0 <= place < round(self._duty * (CYCLE - _ALONE))

    def took(self, seconds: float, usual: bool = True) -> None:
        """The next step took so long; `usual` unless it says nothing of others."""
        beside = self.runs
        self._num_steps += 1
        self._num_beside += beside
        # A step just after a change holds something of both.
        if usual and self._place not in (0, _ALONE):
            (self._beside if beside else self._alone).append(seconds)
        self._place += 1
        if self._place == CYCLE:
            self._place = 0
            self._judge()

    def _judge(self) -> None:
        if not self._beside or not self._alone:
            self._rest()
            return
        alone = statistics.median(self._alone)
        self._slowdown = statistics.median(self._beside) / alone - 1
        self._beside.clear()
        most = (CYCLE - _ALONE) / CYCLE
        # In the mean over a cycle: slowdown x the share of steps that it runs in.
        allowed = self.max_slowdown / max(self._slowdown, self.max_slowdown * most)
        self._duty += _GAIN * (min(allowed / most, 1.0) - self._duty)
        if round(self._duty * (CYCLE - _ALONE)) <= 1:  # of which the first does not count
            self._duty, self._cycles_off = 0.0, 0

    def _rest(self) -> None:
        """A cycle without the background, or one of which nothing is known."""
        self._cycles_off += 1
        if self._duty == 0 and self._cycles_off >= _PROBE_EVERY:
            self._cycles_off = 0
            self._duty = 3 / (CYCLE - _ALONE)
