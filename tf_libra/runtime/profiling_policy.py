"""Choice of the steps under a plan that are traced, to be compared with the prediction."""

import time
from collections.abc import Callable

# Steps under the plan that are traced, after the first, anyway.
CHECKED_STEPS = 5
# What tracing further steps of a run may cost. So that a long run leaves a bounded file, the next
# step is also not traced before the time since the plan's activation has grown by a tenth.
CHECK_SHARE = 0.01
_CHECK_GROWTH = 0.1


class ProfilingPolicy:
    """Decides it, on rank 0, for one plan: the first steps, and later few enough to cost little."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins when the plan is activated."""
        self._clock = clock
        self._in_force_at = clock()
        self._due = float("inf")
        self._usual_seconds = 0.0

    def wants(self, steps_of_plan: int, is_written: bool) -> bool:
        """Returns whether to trace the next step.

        Args:
            steps_of_plan: how many calls were made under the plan.
            is_written: whether what is observed is written down for later.
        """
        if 0 < steps_of_plan <= CHECKED_STEPS:
            return True
        return steps_of_plan > 0 and is_written and self._clock() >= self._due

    def took(self, seconds: float, usual: bool, traced: bool) -> None:
        """A step took so long; `usual` unless it was the plan's first or traced."""
        if traced:
            now = self._clock()
            cost = max(seconds - self._usual_seconds, 0.0)
            growth = _CHECK_GROWTH * (now - self._in_force_at)
            self._due = now + max(cost / CHECK_SHARE, growth)
        if usual:
            self._usual_seconds = seconds
