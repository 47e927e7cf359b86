"""Drift detector: compares steady-state step times with the time expected under the active plan.

Rank 0 runs a drift check every `STEPS_PER_DRIFT_CHECK` steps, at the same step on every rank. A
check compares the median of the steps since the previous check. Several deviating checks in a row
are a drift. The detector also limits the share of training time that retuning may cost.
"""

import statistics

STEPS_PER_DRIFT_CHECK = 32
# Larger than noise: a step time that deviates by this factor has changed.
FACTOR = 1.25
# Consecutive deviating checks that make a drift. Grows after every retuning (exponential back-off),
# so an oscillating machine is not retuned endlessly, and is reset after a long stable time.
PATIENCE = 2
_PATIENCE_GROWTH = 2
_STABLE_PERIODS = 8
# Initial estimate of a trial's extra cost, as a share of a steady-state step.
_INITIAL_EXTRA_COST = 0.5


class DriftDetector:
    """Comparison of step times on rank 0 with the expected ones, and the cost of retuning."""

    def __init__(self, max_overhead: float, expected_seconds: float | None) -> None:
        """Starts with the active plan.

        Args:
            max_overhead: share of training time that retuning may cost.
            expected_seconds: steady-state step time under the plan; None to take the first check's.
        """
        self._max_overhead = max_overhead
        # By steps per graph: several steps in one graph take less time each.
        self._expected: dict[int, float] = {}
        self._since_check: dict[int, list[float]] = {}
        self._steps_per_graph = 1
        self._measured: float | None = None
        self._patience = PATIENCE
        self._checks_off = 0
        self._checks_on = 0
        self._total_seconds = 0.0
        self._extra_seconds = 0.0
        self._num_trials = 0
        self._expect(expected_seconds)

    def _expect(self, seconds: float | None) -> None:
        self._expected = {} if seconds is None else {1: seconds}
        self._since_check = {}
        self._checks_off = self._checks_on = 0

    @property
    def expected_seconds(self) -> float | None:
        """Expected seconds of a steady-state step; None while unknown."""
        return self._expected.get(self._steps_per_graph)

    @property
    def measured_seconds(self) -> float | None:
        """Median seconds of the steady-state steps before the last check."""
        return self._measured

    @property
    def has_drifted(self) -> bool:
        """True if enough checks in a row deviated from the expected time."""
        return self._checks_off >= self._patience

    @property
    def has_recovered(self) -> bool:
        """True if as many checks in a row met the expected time again."""
        return self._checks_on >= self._patience

    def record_step(self, seconds: float, num_steps: int = 1) -> None:
        """Records steady-state steps under the plan.

        Args:
            seconds: seconds of each step.
            num_steps: steps that ran in one graph.
        """
        self._since_check.setdefault(num_steps, []).append(seconds)
        self._total_seconds += num_steps * seconds

    def record_trial(self, seconds: float) -> None:
        """Records the seconds of a trial or of a traced step."""
        self._total_seconds += seconds
        steady = self._measured or self.expected_seconds or seconds
        self._extra_seconds += max(seconds - steady, 0.0)
        self._num_trials += 1

    def check(self) -> None:
        """Compares the steps since the last check with the expected time."""
        if not self._since_check:
            return
        self._steps_per_graph = max(self._since_check, key=lambda n: len(self._since_check[n]))
        self._measured = statistics.median(self._since_check[self._steps_per_graph])
        self._since_check = {}
        expected = self._expected.setdefault(self._steps_per_graph, self._measured)
        if 1 / FACTOR <= self._measured / expected <= FACTOR:
            self._checks_off, self._checks_on = 0, self._checks_on + 1
        else:
            self._checks_off, self._checks_on = self._checks_off + 1, 0
        if self._checks_on >= _STABLE_PERIODS * self._patience:
            self._patience = PATIENCE

    def affords(self, num_trials: int) -> bool:
        """Returns whether this number of trials keeps retuning within its share of time."""
        steady = self._measured or self.expected_seconds or 0.0
        each = _INITIAL_EXTRA_COST * steady
        if self._num_trials:
            each = self._extra_seconds / self._num_trials
        cost = self._extra_seconds + num_trials * each
        return cost <= self._max_overhead * (self._total_seconds + num_trials * (steady + each))

    def on_recovered(self) -> None:
        """Doubles the patience after a drift that ended without a new plan."""
        self._checks_off = self._checks_on = 0
        self._patience *= _PATIENCE_GROWTH

    def on_retuned(self, expected_seconds: float | None) -> None:
        """Doubles the patience after a retuning, and sets the expected time of the new plan."""
        self._expect(expected_seconds)
        self._patience *= _PATIENCE_GROWTH
