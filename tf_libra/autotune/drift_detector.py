"""Drift detector: compares step times with those expected of the plan, within a share of the time.

Rank 0 checks at looks: steps, far apart and the same on every rank, at which it may decide that
plans are tried out again. It judges the steps between two looks by their median.
"""

import statistics

# Calls under a plan from one look to the next.
CALLS_PER_LOOK = 32
# A step that takes this factor more or less than expected is another step: noise stays below.
FACTOR = 1.25
# Looks in a row that have to say so; and how that grows, for a machine that changes again and again
# to be followed less and less often, until nothing was found for so many times as long.
PATIENCE = 2
_PATIENCE_GROWTH = 2
_QUIET = 8
# What a step under another plan is taken to cost beyond a usual one before any was tried: a share.
_FIRST_GUESS = 0.5


class Drift:
    """Step times on rank 0, compared with the expected ones."""

    def __init__(self, share: float, expected_seconds: float | None) -> None:
        """Begin with the active plan.

        Args:
            share: of the steps' time that steps which try things out may cost.
            expected_seconds: of a usual step under the plan; None to take those of the first steps.
        """
        self._share = share
        # By the number of steps in a graph: several in one take less time each.
        self._expected: dict[int, float] = {}
        self._since_look: dict[int, list[float]] = {}
        self._kind = 1
        self._measured: float | None = None
        self._patience = PATIENCE
        self._looks_off = 0
        self._looks_on = 0
        self._total_seconds = 0.0
        self._extra_seconds = 0.0
        self._num_tried = 0
        self._expect(expected_seconds)

    def _expect(self, seconds: float | None) -> None:
        self._expected = {} if seconds is None else {1: seconds}
        self._since_look = {}
        self._looks_off = self._looks_on = 0

    @property
    def expected_seconds(self) -> float | None:
        """Expected seconds of a usual step of the present kind; None while unknown."""
        return self._expected.get(self._kind)

    @property
    def measured_seconds(self) -> float | None:
        """The median of the usual steps between the last two looks."""
        return self._measured

    @property
    def is_off(self) -> bool:
        """True if step times have deviated from the expected ones for long."""
        return self._looks_off >= self._patience

    @property
    def is_over(self) -> bool:
        """True if step times have been as expected again for as long."""
        return self._looks_on >= self._patience

    def ran(self, seconds: float, num_steps: int = 1) -> None:
        """Usual steps under the plan, `num_steps` of them in one graph, took so long each."""
        self._since_look.setdefault(num_steps, []).append(seconds)
        self._total_seconds += num_steps * seconds

    def tried(self, seconds: float) -> None:
        """A step took so long in which something was tried out, or traced."""
        self._total_seconds += seconds
        usual = self._measured or self.expected_seconds or seconds
        self._extra_seconds += max(seconds - usual, 0.0)
        self._num_tried += 1

    def look(self) -> None:
        """Judges the steps since the last look."""
        if not self._since_look:
            return
        self._kind = max(self._since_look, key=lambda kind: len(self._since_look[kind]))
        self._measured = statistics.median(self._since_look[self._kind])
        self._since_look = {}
        expected = self._expected.setdefault(self._kind, self._measured)
        if 1 / FACTOR <= self._measured / expected <= FACTOR:
            self._looks_off, self._looks_on = 0, self._looks_on + 1
        else:
            self._looks_off, self._looks_on = self._looks_off + 1, 0
        if self._looks_on >= _QUIET * self._patience:
            self._patience = PATIENCE

    def affords(self, num_steps: int) -> bool:
        """Returns whether `num_steps` steps may try things out now, given their cost so far."""
        usual = self._measured or self.expected_seconds or 0.0
        each = self._extra_seconds / self._num_tried if self._num_tried else _FIRST_GUESS * usual
        cost = self._extra_seconds + num_steps * each
        return cost <= self._share * (self._total_seconds + num_steps * (usual + each))

    def passed(self) -> None:
        """Steps are as expected again."""
        self._looks_off = self._looks_on = 0
        self._patience *= _PATIENCE_GROWTH

    def settled(self, expected_seconds: float | None) -> None:
        """Plans were tried out: from here on, this is expected, or what the next steps take."""
        self._expect(expected_seconds)
        self._patience *= _PATIENCE_GROWTH
