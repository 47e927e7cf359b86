"""Runtime state that all training functions of this process share.

A function decorated with `STATE.value` declares one value, which its first call creates. Registries
that are filled at import, memoized pure functions and loaded libraries are not runtime state.
"""

import functools
import os
from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class OnReset(Enum):
    """Effect of `ProcessState.reset` on a value that needs no method of its own for it."""

    KEEP = "keep"
    DISCARD = "discard"


class ProcessValue(Generic[_T]):
    """One value of this process. Call it to get the value."""

    def __init__(
        self,
        create: Callable[[], _T],
        on_reset: OnReset | Callable[[_T], None],
        survives_fork: bool,
    ) -> None:
        """See `ProcessState.value`."""
        functools.update_wrapper(self, create)
        self._create = create
        self._on_reset = on_reset
        self._survives_fork = survives_fork
        self._created: list[_T] = []  # at most one

    def __call__(self) -> _T:
        """Returns the value, which the first call creates."""
        if not self._created:
            self._created = [self._create()]
        return self._created[0]

    @property
    def is_created(self) -> bool:
        """Returns whether the value exists."""
        return bool(self._created)

    @property
    def name(self) -> str:
        """Module and name of the declaration."""
        return f"{self._create.__module__}.{self._create.__qualname__}"

    def reset(self) -> None:
        """Applies the declared effect of the end of a job."""
        if self._on_reset is OnReset.DISCARD:
            self.discard()
        elif not isinstance(self._on_reset, OnReset) and self._created:
            self._on_reset(self._created[0])

    def after_fork(self) -> None:
        """Discards, in a forked child, a value that belongs to the parent."""
        if not self._survives_fork:
            self.discard()

    def discard(self) -> None:
        """Lets the next call create the value again."""
        self._created = []


class ProcessState:
    """The runtime state of this process: all declared values."""

    def __init__(self) -> None:
        """Begins without values."""
        self._values: dict[str, ProcessValue[Any]] = {}
        os.register_at_fork(after_in_child=self._after_fork)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the values that imported modules have declared."""
        return tuple(sorted(self._values))

    def value(
        self,
        *,
        on_reset: OnReset | Callable[[Any], None] = OnReset.KEEP,
        survives_fork: bool = True,
    ) -> Callable[[Callable[[], _T]], ProcessValue[_T]]:
        """Returns a decorator that declares a value by the function that creates it.

        Args:
            on_reset: what `reset` does to the value, or a method that `reset` calls with it.
            survives_fork: False for a value with threads or connections, which a forked child does
                not have.
        """

        def declare(create: Callable[[], _T]) -> ProcessValue[_T]:
            declared = ProcessValue(create, on_reset, survives_fork)
            self._values[declared.name] = declared
            return declared

        return declare

    def reset(self) -> None:
        """Forgets the ranks of the job: elastic mode is about to begin the next one.

        Values of the process itself stay, such as installed patches and used numbers.
        """
        for value in list(self._values.values()):
            value.reset()

    def _after_fork(self) -> None:
        for value in self._values.values():
            value.after_fork()


STATE = ProcessState()
