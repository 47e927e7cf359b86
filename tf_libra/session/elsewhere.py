"""Variables that some function trains in stages, so that most ranks have old values of them.

Whoever uses them next brings them up to date first. All ranks call the same functions in the same
order, and so find the same.
"""

import weakref
from collections.abc import Collection
from typing import Protocol


class Keeper(Protocol):
    """Knows who has the values of the variables that one function trains."""

    def brings_back(self, keys: Collection[int]) -> bool:
        """Brings those of these variables up to date that are not; whether there were any."""
        ...


# By identity of the function, which is the same on every rank and so gives an order.
_KEEPERS: weakref.WeakValueDictionary[str, Keeper] = weakref.WeakValueDictionary()


def register(function: str, keeper: Keeper) -> None:
    """From now on others ask this keeper for the variables of a function."""
    _KEEPERS[function] = keeper


def bring_back(keys: Collection[int], but: Keeper | None = None) -> None:
    """Brings variables up to date that other functions have trained; all ranks call it.

    Args:
        keys: of the variables, as `Held.key`.
        but: who needs them, and is not asked.

    Raises:
        tf.errors.OpError: a rank is gone or late.
    """
    for _, keeper in sorted(_KEEPERS.items()):
        if keeper is not but:
            keeper.brings_back(keys)


def anybody() -> bool:
    """Whether any function of this process trains in stages."""
    return len(_KEEPERS) > 0


def forget() -> None:
    """The ranks are others than before: nobody has what was known."""
    _KEEPERS.clear()
