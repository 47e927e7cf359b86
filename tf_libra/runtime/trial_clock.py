"""Steps and seconds of trials between families: their budget, and their share of training."""

import time

from tf_libra import config
from tf_libra.internal import formatting
from tf_libra.planning.family_comparison import TrialCost
from tf_libra.runtime.family_trials import most_strategies


class TrialClock:
    """Counter of the present trials, tuning of data parallelism included.

    Attributes:
        num_steps: number of their steps.
        num_trials: number of steps of all trials of the job.
    """

    def __init__(self, options: config.DataParallelOptions) -> None:
        """Starts with the first step.

        Args:
            options: the user's options, which have the budget.
        """
        self._options = options
        self.begin_job()

    def begin_job(self) -> None:
        """Begins a job, whose trials have cost nothing."""
        self.num_trials, self._trial_seconds = 0, 0.0
        self._num_steps, self._seconds = 0, 0.0  # of all steps
        self._num_recorded = 0  # steps when their cost was written
        self.begin()

    def begin(self) -> None:
        """Begins other trials."""
        self.num_steps = 0
        self._start: float | None = None  # of their first step

    def count_step(self) -> None:
        """Counts a step of these trials, which begins now."""
        self.num_steps += 1
        self.num_trials += 1
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
        """Returns a clause: too few steps are left."""
        most = self._options.trial_budget.max_steps
        return f"{self.steps_left} of {most} steps of trials are left, too few for turns of two"

    def describe_late(self) -> str:
        """Returns a clause: no seconds are left."""
        most = formatting.time(self._options.trial_budget.max_seconds)
        return f"trials have taken {most} before two strategies were timed"

    def record(self, seconds: float, num_steps: int, is_trial: bool) -> None:
        """Records the seconds of steps, or of a trial, which has been counted."""
        self._num_steps += num_steps
        self._seconds += seconds
        if is_trial:
            self._trial_seconds += seconds

    @property
    def cost(self) -> TrialCost | None:
        """Cost of all trials of the job so far; None before the first step."""
        if self.num_trials == 0:
            return None
        share = self._trial_seconds / self._seconds if self._seconds > 0 else 1.0
        return TrialCost(self.num_trials, self._trial_seconds, min(share, 1.0))

    def end_trials(self) -> None:
        """Lets the cost be written after the present step."""
        self._num_recorded = 0

    def is_due(self) -> bool:
        """Returns whether to write the cost, and again once there are twice as many steps."""
        is_due = self._num_steps >= 2 * self._num_recorded
        if is_due:
            self._num_recorded = self._num_steps
        return is_due
