"""Hooks around the steps of all decorated functions of this process, such as background jobs."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

from tf_libra.internal.registry import Registry, load_systems
from tf_libra.reporting.records.record_types import Record


class StepHook(Protocol):
    """Component that acts around steps."""

    def around_step(
        self, is_settled: Callable[[], bool]
    ) -> contextlib.AbstractContextManager[None]:
        """Wraps a call of a decorated function.

        Args:
            is_settled: returns True if the function neither tries nor measures anything.
        """
        ...

    def around_wait(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Wraps a wait for another rank within a step; `what` is the same in every step."""
        ...

    def next_record(self) -> Callable[[str, int], Record] | None:
        """Returns a function that makes a record from the training function's name and the rank.

        None if nothing is to be recorded after this step.
        """
        ...

    def explain(self) -> str:
        """Returns one line for `explain()`; empty for none."""
        ...


HOOKS: Registry[Callable[[], StepHook | None]] = Registry("hook", load_systems)


def active_hooks() -> list[StepHook]:
    """Returns the hooks that act in this process now.

    Raises:
        ValueError: the environment describes a hook wrongly.
    """
    found = (get() for get in HOOKS.values())
    return [hook for hook in found if hook is not None]


@contextlib.contextmanager
def around_wait(what: str) -> Iterator[None]:
    """Wraps a wait for another rank within a step, for all hooks."""
    with contextlib.ExitStack() as stack:
        for hook in active_hooks():
            stack.enter_context(hook.around_wait(what))
        yield
