"""Variables that some function trains in stages, so that most ranks have old values of them.

The function that uses them next brings them up to date first. All ranks call the same functions in
the same order, and so find the same. But each rank finds at a time of its own that a function
without references is gone. So the owner of its variables stays behind.
"""

import atexit
import gc
import weakref
from collections.abc import Collection, Mapping
from typing import Protocol

from tf_libra.coordination.control_plane import Control
from tf_libra.internal.process_state import STATE
from tf_libra.variable_sync.bound_variables import BoundVariable


class ShardOwner(Protocol):
    """Knows which ranks have the values of a function's variables, but not the variables."""

    @property
    def is_stale(self) -> bool:
        """Returns whether only some ranks have a variable up to date; the same on every rank."""
        ...

    @property
    def is_done(self) -> bool:
        """Returns whether the function is gone, and so is every variable that is not up to date."""
        ...

    def on_owner_collected(self) -> None:
        """The function is gone."""
        ...

    def warn(self) -> None:
        """Says, once, what of it only other ranks have, if the function is gone.

        Called when all unreachable objects have been collected.
        """
        ...

    def synchronize(self, held: Mapping[int, BoundVariable]) -> set[int]:
        """Brings those of these variables, by key, up to date that are not; returns their keys."""
        ...

    def stale(self) -> dict[int, BoundVariable]:
        """Returns what is out of date and still exists, by numbers that all ranks share."""
        ...

    def trained(self) -> dict[int, str]:
        """Names of the variables that its steps change, by key."""
        ...

    def forget_ranks(self) -> None:
        """Forgets the ranks that have the values: they are gone, or others than before."""
        ...


_OLDEST = len(gc.get_threshold()) - 1
"""The generation of what has outlived most collections: with it everything is collected."""


class ShardRegistry:
    """Registry of what this process's functions have trained in stages, and of its owners."""

    def __init__(self) -> None:
        # By identity of the function, which is the same on every rank and so gives an order.
        self._keepers: dict[str, ShardOwner] = {}
        # Whose ranks were met last: `World.job`.
        self._job = 0
        self._reach: Control | None = None

    def register(self, function: str, keeper: ShardOwner, owner: object) -> None:
        """From now on others ask this keeper for the variables of a function.

        Args:
            function: its identity.
            keeper: of its variables.
            owner: goes with the function, on each rank at another time.
        """
        if not self._keepers and self._collected not in gc.callbacks:
            gc.callbacks.append(self._collected)
            atexit.register(self._end)
        self._keepers[function] = keeper
        weakref.finalize(owner, self._left, function, keeper).atexit = False

    def _left(self, function: str, keeper: ShardOwner) -> None:
        # Called wherever garbage is collected, so no owner is forgotten here.
        if self._keepers.get(function) is keeper:
            keeper.on_owner_collected()

    # Variables often go with the function, as at the end of a script's main: models are cycles,
    # which are there until they are collected. What has outlived a whole collection is still
    # referenced.

    def _collected(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "stop" and info["generation"] == _OLDEST:
            for keeper in list(self._keepers.values()):
                keeper.warn()

    def _end(self) -> None:
        """Before modules are taken apart, and what the script holds with them."""
        if self.has_stale():
            gc.collect()
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)

    def synchronize(
        self, held: Mapping[int, BoundVariable], but: ShardOwner | None = None
    ) -> set[int]:
        """Brings variables up to date that other functions have trained; all ranks call it.

        Args:
            held: the variables, by key.
            but: the owner that needs them, which is left out.

        Returns:
            Keys of those that were not up to date.

        Raises:
            tf.errors.OpError: a rank is gone or late.
        """
        found: set[int] = set()
        if self.has_stale():
            for _, keeper in sorted(self._keepers.items(), key=lambda one: one[0]):
                if keeper is not but:
                    found |= keeper.synchronize(held)
        return found

    def begin_step(self, control: Control) -> None:
        """A step in stages begins, on all ranks."""
        self._reach = control

    def control(self) -> Control | None:
        """Returns what reaches the ranks that have to synchronize variables; None if none are old.

        The same on every rank, where keepers may not be.
        """
        return self._reach

    def synchronize_all(self, control: Control) -> None:
        """Brings all variables up to date that any function has trained; all ranks call it.

        Those that only some ranks still have stay as they are. It returns when all ranks have all.

        Raises:
            EngineError, tf.errors.OpError: a rank is gone or late.
        """
        keepers = dict(sorted(self._keepers.items()))
        mine = {name: keeper.stale() for name, keeper in keepers.items()}
        everyone = control.all_gather({name: sorted(old) for name, old in mine.items()})
        for name, keeper in keepers.items():
            numbers = set.intersection(*(set(rank.get(name, ())) for rank in everyone))
            keeper.synchronize({mine[name][one].key: mine[name][one] for one in sorted(numbers)})
        control.all_gather(None)
        self._reach = None

    def names_trained_except(self, kept: Collection[int]) -> list[str]:
        """Names of variables that functions train in stages, but for those of these keys."""
        keepers = [one for _, one in sorted(self._keepers.items())]
        return [name for one in keepers for key, name in one.trained().items() if key not in kept]

    def has_stale(self) -> bool:
        """Returns whether there is any variable to be brought up to date."""
        for name in [name for name, one in self._keepers.items() if one.is_done]:
            del self._keepers[name]
        return any(one.is_stale for one in self._keepers.values())

    def begin_job(self, number: int) -> None:
        """The ranks are those of this job: where it is another than before, they are others."""
        if number != self._job:
            self.forget()
        self._job = number

    def forget(self) -> None:
        """Forgets which ranks have what: the ranks are others than before."""
        self._reach = None
        for keeper in list(self._keepers.values()):
            keeper.forget_ranks()


@STATE.value(on_reset=ShardRegistry.forget)
def shard_registry() -> ShardRegistry:
    """Returns the registry of all functions of this process."""
    return ShardRegistry()
