"""Variables that some function trains in stages, so that most ranks have old values of them.

Whoever uses them next brings them up to date first. All ranks call the same functions in the same
order, and so find the same; but when a function that nobody refers to any more is gone, each rank
finds at a time of its own. So who keeps its variables stays behind.
"""

import atexit
import gc
import weakref
from collections.abc import Collection, Mapping
from typing import Protocol

from tf_libra.ranks.control import Control
from tf_libra.variables.held import Held


class Keeper(Protocol):
    """Knows who has the values of the variables that one function trains, but not the variables."""

    @property
    def is_behind(self) -> bool:
        """Whether only some ranks have a variable up to date; the same on every rank."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether the function is gone, and so is every variable that is not up to date."""
        ...

    def is_left(self) -> None:
        """The function is gone."""
        ...

    def warn(self) -> None:
        """Says, once, what of it only other ranks have, if the function is gone.

        Called when all that nobody can reach has been collected.
        """
        ...

    def brings_back(self, held: Mapping[int, Held]) -> set[int]:
        """Brings those of these variables, by key, up to date that are not; returns their keys."""
        ...

    def old(self) -> dict[int, Held]:
        """What is not up to date and is there, by numbers that are the same on all ranks."""
        ...

    def trained(self) -> dict[int, str]:
        """Names of the variables that its steps change, by key."""
        ...

    def forget_ranks(self) -> None:
        """Those that it knows of are not there any more, or others."""
        ...


_KEEPERS: dict[str, Keeper] = {}
"""By identity of the function, which is the same on every rank and so gives an order."""

_JOB = [0]
"""Whose ranks were met last: `World.job`."""

_REACH: list[Control] = []
"""What reaches those that have run steps in stages since all was brought up to date; or nothing.

The same on every rank, where keepers may not be.
"""

_OLDEST = len(gc.get_threshold()) - 1
"""The generation of what has outlived most collections: with it everything is collected."""


def register(function: str, keeper: Keeper, owner: object) -> None:
    """From now on others ask this keeper for the variables of a function.

    Args:
        function: its identity.
        keeper: of its variables.
        owner: goes with the function, on each rank at another time.
    """
    if not _KEEPERS and _collected not in gc.callbacks:
        gc.callbacks.append(_collected)
        atexit.register(_end)
    _KEEPERS[function] = keeper
    weakref.finalize(owner, _left, function, keeper).atexit = False


def _left(function: str, keeper: Keeper) -> None:
    # Called wherever garbage is collected, so nobody is forgotten here.
    if _KEEPERS.get(function) is keeper:
        keeper.is_left()


# Variables often go with the function, as at the end of a script's main: models are cycles, which
# are there until they are collected. What has outlived a whole collection is held by somebody.


def _collected(phase: str, info: Mapping[str, int]) -> None:
    if phase == "stop" and info["generation"] == _OLDEST:
        for keeper in list(_KEEPERS.values()):
            keeper.warn()


def _end() -> None:
    """Before modules are taken apart, and what the script holds with them."""
    if anybody():
        gc.collect()
    if _collected in gc.callbacks:
        gc.callbacks.remove(_collected)


def bring_back(held: Mapping[int, Held], but: Keeper | None = None) -> set[int]:
    """Brings variables up to date that other functions have trained; all ranks call it.

    Args:
        held: the variables, by key.
        but: who needs them, and is not asked.

    Returns:
        Keys of those that were not up to date.

    Raises:
        tf.errors.OpError: a rank is gone or late.
    """
    found: set[int] = set()
    if anybody():
        for _, keeper in sorted(_KEEPERS.items(), key=lambda one: one[0]):
            if keeper is not but:
                found |= keeper.brings_back(held)
    return found


def stepped(control: Control) -> None:
    """A step in stages begins, on all ranks."""
    _REACH[:] = [control]


def reach() -> Control | None:
    """What reaches the ranks that have to bring variables up to date; None where none are old."""
    return _REACH[0] if _REACH else None


def bring_everything_back(control: Control) -> None:
    """Brings all variables up to date that any function has trained; all ranks call it.

    Those that only some ranks still have stay as they are. It returns when all ranks have all.

    Raises:
        EngineError, tf.errors.OpError: a rank is gone or late.
    """
    keepers = dict(sorted(_KEEPERS.items()))
    mine = {name: keeper.old() for name, keeper in keepers.items()}
    everyone = control.all_gather({name: sorted(old) for name, old in mine.items()})
    for name, keeper in keepers.items():
        numbers = set.intersection(*(set(rank.get(name, ())) for rank in everyone))
        keeper.brings_back({mine[name][one].key: mine[name][one] for one in sorted(numbers)})
    control.all_gather(None)
    _REACH.clear()


def trained_beside(kept: Collection[int]) -> list[str]:
    """Names of variables that functions train in stages, but for those of these keys."""
    keepers = [one for _, one in sorted(_KEEPERS.items())]
    return [name for one in keepers for key, name in one.trained().items() if key not in kept]


def anybody() -> bool:
    """Whether there is any variable to be brought up to date."""
    for name in [name for name, one in _KEEPERS.items() if one.is_done]:
        del _KEEPERS[name]
    return any(one.is_behind for one in _KEEPERS.values())


def of_job(number: int) -> None:
    """The ranks are those of this job: where it is another than before, they are others."""
    if number not in _JOB:
        forget()
    _JOB[:] = [number]


def forget() -> None:
    """The ranks are others than before: nobody has what was known."""
    _REACH.clear()
    for keeper in list(_KEEPERS.values()):
        keeper.forget_ranks()
