"""Budget of tuning: limits on steps and seconds, and the tracker that grants steps."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from tf_libra.internal import formatting, validation
from tf_libra.internal.values import Count, Natural, Value


def _check_seconds(name: str, value: Any) -> float:
    return math.inf if value == math.inf else validation.real(name, value, above=0)


@dataclass(frozen=True)
class Budget(Value):
    """Limits of tuning before a plan is active.

    Attributes:
        max_steps: training steps, at least 1.
        max_seconds: wall-clock seconds, above 0; infinite to limit steps only.
        min_steps: steps that `max_seconds` does not limit.

    Raises:
        ValueError: a limit is out of its range.
    """

    max_steps: Count = 60
    max_seconds: Annotated[float, _check_seconds] = 30.0
    min_steps: Natural = 0


class BudgetTracker:
    """Tracker of a budget, which grants every trial its step.

    First steps of plans, which instantiate a graph, and other steps are timed separately. Their
    median durations predict what the budget still affords; a step that would end too late is not
    granted. The job's very first step is not timed, as it pays for more than any later one.
    """

    def __init__(
        self,
        budget: Budget,
        clock: Callable[[], float] = time.monotonic,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Starts the budget's clock.

        Args:
            budget: limits on steps and seconds.
            clock: returns seconds.
            should_stop: returns True to end tuning before the budget is spent.
        """
        self._should_stop = should_stop
        self._budget = budget
        self._clock = clock
        self._deadline = clock() + budget.max_seconds
        self._steps_left = budget.max_steps
        self._ended_early = False
        self._durations: dict[bool, list[float]] = {True: [], False: []}  # by `is_first`
        self._running: tuple[float, bool] | None = None  # start and `is_first` of the current step

    @property
    def steps_left(self) -> int:
        """Number of steps of median duration that can still be granted."""
        if self._should_stop():
            return 0
        each = self._median_seconds(is_first=False)
        if each == 0:
            return self._steps_left
        return max(math.floor(min(self._steps_left, self._seconds_left / each)), 0)

    def affords(self, first: int, others: int) -> bool:
        """Returns whether the budget affords `first` first steps of plans and `others` more."""
        if self._should_stop():
            return False
        seconds = first * self._median_seconds(True) + others * self._median_seconds(False)
        return first + others <= self._steps_left and seconds <= self._seconds_left

    @property
    def ended_early(self) -> bool:
        """True if a step was not granted."""
        return self._ended_early

    def take_step(self, is_first: bool = False) -> bool:
        """Takes the next step from the budget; returns False if it is not granted.

        If a first step would take too long, other steps may still be granted.

        Args:
            is_first: True for the first step of a plan.
        """
        now = self._clock()
        if self._running is not None:
            start, kind = self._running
            if self._steps_left < self._budget.max_steps - 1:
                self._durations[kind].append(now - start)
            self._running = None
        left = self._deadline - now
        is_late = left <= 0 or left < self._median_seconds(is_first)
        num_taken = self._budget.max_steps - self._steps_left
        if is_late and num_taken < self._budget.min_steps:
            is_late = False
        if self._should_stop() or self._steps_left <= 0 or is_late:
            self._ended_early = True
            return False
        self._steps_left -= 1
        self._running = now, is_first
        return True

    def exhaustion_note(self) -> str:
        """Returns a note for users on a budget that ended early."""
        seconds = self._budget.max_seconds
        or_seconds = "" if seconds == math.inf else f" or {formatting.time(seconds)}"
        return (
            f"budget of {self._budget.max_steps} steps{or_seconds} ended before all trials: the"
            " plan rests on the trials made"
        )

    @property
    def _seconds_left(self) -> float:
        return self._deadline - self._clock()

    def _median_seconds(self, is_first: bool) -> float:
        """Returns the median seconds of steps of a kind; 0 before the first one."""
        durations = self._durations[is_first]
        return statistics.median(durations) if durations else 0.0
