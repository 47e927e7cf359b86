"""The end of tuning: no experiment is left, or the budget is spent earlier."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from tf_libra.internal import formatting, validation


@dataclass(frozen=True)
class Budget:
    """The steps and the time that tuning may take before a plan is active.

    Attributes:
        max_steps: training steps, at least 1.
        max_seconds: seconds of the wall clock, above 0; infinite if only steps count.
        least_steps: number of steps that tuning may take regardless of their duration.

    Raises:
        ValueError: a limit is out of its range.
    """

    max_steps: int = 60
    max_seconds: float = 30.0
    least_steps: int = 0

    def __post_init__(self) -> None:
        validation.integer("max_steps", self.max_steps, minimum=1)
        if self.max_seconds != math.inf:
            validation.real("max_seconds", self.max_seconds, above=0)
        validation.integer("least_steps", self.least_steps)


class BudgetTracker:
    """Tracker of a budget, queried before every experiment; each experiment takes one step.

    The tracker times two kinds of steps: the first step of a plan, which pays for its
    instantiation, and the others. From their usual durations it predicts what the budget still
    affords, and rejects a step that would end too late. The job's very first step pays for more
    than any later one, so its duration is ignored.
    """

    def __init__(
        self,
        budget: Budget,
        clock: Callable[[], float] = time.monotonic,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start the budget's clock.

        Args:
            budget: the steps and seconds that tuning may take.
            clock: seconds.
            is_over: whether no experiment can be made any more, whatever the budget has left.
        """
        self._is_over = is_over
        self._budget = budget
        self._clock = clock
        self._deadline = clock() + budget.max_seconds
        self._steps_left = budget.max_steps
        self._came_early = False
        self._took: dict[bool, list[float]] = {True: [], False: []}  # by whether it was a first
        self._begun: tuple[float, bool] | None = None  # the step under way: since when, its kind

    @property
    def steps_left(self) -> int:
        """Steps that can still be taken, as long as usual ones are."""
        if self._is_over():
            return 0
        each = self._usual_seconds(is_first=False)
        if each == 0:
            return self._steps_left
        return max(math.floor(min(self._steps_left, self._seconds_left / each)), 0)

    def affords(self, first: int, others: int) -> bool:
        """Returns whether the budget still affords `first` first steps of plans and `others`."""
        if self._is_over():
            return False
        seconds = first * self._usual_seconds(True) + others * self._usual_seconds(False)
        return first + others <= self._steps_left and seconds <= self._seconds_left

    @property
    def came_early(self) -> bool:
        """True if the budget did not suffice for an experiment."""
        return self._came_early

    def is_exhausted(self, is_first: bool = False) -> bool:
        """Returns whether the budget forbids the next experiment; if not, takes its step.

        If a first step would take too long, other steps may still be allowed.

        Args:
            is_first: whether it is the first step of a plan.
        """
        now = self._clock()
        if self._begun is not None:
            began, kind = self._begun
            if self._steps_left < self._budget.max_steps - 1:
                self._took[kind].append(now - began)
            self._begun = None
        left = self._deadline - now
        is_late = left <= 0 or left < self._usual_seconds(is_first)
        is_begun = self._budget.max_steps - self._steps_left < self._budget.least_steps
        if self._is_over() or self._steps_left <= 0 or (is_late and not is_begun):
            self._came_early = True
            return True
        self._steps_left -= 1
        self._begun = now, is_first
        return False

    def note(self) -> str:
        """Returns a note for the reader about an end that came early."""
        seconds = self._budget.max_seconds
        of_seconds = "" if seconds == math.inf else f" or {formatting.time(seconds)}"
        return (
            f"the budget of {self._budget.max_steps} steps{of_seconds} did not suffice for all"
            " experiments; the plan rests on those that were made"
        )

    @property
    def _seconds_left(self) -> float:
        return self._deadline - self._clock()

    def _usual_seconds(self, is_first: bool) -> float:
        """Returns the median seconds of a step of this kind; 0 before the first one."""
        took = self._took[is_first]
        return statistics.median(took) if took else 0.0
