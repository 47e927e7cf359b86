"""What decides that tuning is over: no experiment is left, or the budget is spent before."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from tf_libra.internal import formatting, validation


@dataclass(frozen=True)
class Budget:
    """How much may go by before a plan is in force.

    Attributes:
        max_steps: training steps, at least 1.
        max_seconds: seconds of the wall clock, above 0; infinite where only steps count.
        least_steps: that may go by however long they take.

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
    """Asked before every experiment, of which each takes one step.

    It sees how long they take: the first step of a plan, which pays for its instantiation, and the
    others. So it knows what can still be done, and no step is begun that would end too late if it
    took as long as those of its kind. The job's very first step pays for more than any later one,
    and tells nothing of them.
    """

    def __init__(
        self,
        budget: Budget,
        clock: Callable[[], float] = time.monotonic,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """The budget's seconds begin.

        Args:
            budget: what may go by.
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
        """Whether so many first steps of plans, and so many others, can still be taken."""
        if self._is_over():
            return False
        seconds = first * self._usual_seconds(True) + others * self._usual_seconds(False)
        return first + others <= self._steps_left and seconds <= self._seconds_left

    @property
    def came_early(self) -> bool:
        """Whether an experiment was not made for want of budget."""
        return self._came_early

    def is_exhausted(self, is_first: bool = False) -> bool:
        """Whether the next experiment may not be made any more; else it takes its step.

        Where a first step would take too long, others may still be made.

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
        """What a reader should know of an end that came early."""
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
        """Of a step of this kind; 0 where none has been taken."""
        took = self._took[is_first]
        return statistics.median(took) if took else 0.0
