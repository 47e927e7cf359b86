"""Steps and seconds of trials between families, within the user's budget."""

import time

from tf_libra import config
from tf_libra.internal import formatting
from tf_libra.runtime.family_trials import most_strategies


class TrialClock:
    """Counter of the present trials, tuning of data parallelism included.

    Attributes:
        num_steps: number of their steps.
    """

    def __init__(self, options: config.DataParallelOptions) -> None:
        """Starts with the first step.

        Args:
            options: the user's options, which have the budget.
        """
        self._options = options
        self.begin()

    def begin(self) -> None:
        """Begins other trials."""
        self.num_steps = 0
        self._start: float | None = None  # of their first step

    def count_step(self) -> None:
        """Counts a step of these trials, which begins now."""
        self.num_steps += 1
        self._start = self._start or time.perf_counter()

    def seconds_left(self) -> float:
        """Returns seconds in which trials may go on."""
        elapsed = 0.0 if self._start is None else time.perf_counter() - self._start
        return self._options.trial_budget.max_seconds - elapsed

    @property
    def steps_left(self) -> int:
        """Number of steps that trials may still take."""
        return max(self._options.trial_budget.max_steps - self.num_steps, 0)

    @property
    def is_short(self) -> bool:
        """True if too few steps are left for turns of two strategies."""
        return most_strategies(self.steps_left) < 2

    def describe_short(self) -> str:
        """Returns that too few steps are left, in a clause."""
        most = self._options.trial_budget.max_steps
        return f"{self.steps_left} of {most} steps of trials are left, too few for turns of two"

    def describe_late(self) -> str:
        """Returns that no seconds are left, in a clause."""
        most = formatting.time(self._options.trial_budget.max_seconds)
        return f"trials have taken {most} before two strategies were timed"
