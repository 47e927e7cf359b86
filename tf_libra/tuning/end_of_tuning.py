"""What decides that tuning is over: no experiment is left, or the budget is spent before."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from tf_libra import checks, units


@dataclass(frozen=True)
class Budget:
    """How much may go by before a plan is in force.

    Attributes:
        max_steps: training steps, at least 1.
        max_seconds: seconds of the wall clock, above 0.

    Raises:
        ValueError: a limit is out of its range.
    """

    max_steps: int = 60
    max_seconds: float = 60.0

    def __post_init__(self) -> None:
        checks.integer("max_steps", self.max_steps, minimum=1)
        checks.real("max_seconds", self.max_seconds, above=0)


class EndOfTuning:
    """Asked before every experiment, of which each takes one step."""

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        """The budget's seconds begin.

        Args:
            budget: what may go by.
            clock: seconds.
        """
        self._budget = budget
        self._clock = clock
        self._deadline = clock() + budget.max_seconds
        self._steps_left = budget.max_steps
        self._came_early = False

    @property
    def steps_left(self) -> int:
        """Steps of the budget that nobody has taken yet."""
        return self._steps_left

    @property
    def came_early(self) -> bool:
        """Whether an experiment was not made for want of budget."""
        return self._came_early

    def has_come(self) -> bool:
        """Whether the next experiment may not be made any more; else it takes its step."""
        if self._steps_left <= 0 or self._clock() >= self._deadline:
            self._came_early = True
        else:
            self._steps_left -= 1
        return self._came_early

    def note(self) -> str:
        """What a reader should know of an end that came early."""
        return (
            f"the budget of {self._budget.max_steps} steps or"
            f" {units.time(self._budget.max_seconds)} ended before all experiments were made; the"
            " plan rests on those that were"
        )
