"""Registry of variables that functions train on some ranks only, or in part on each rank.

A function that uses such variables synchronizes them first. All ranks call the same functions in
the same order, and so synchronize at the same step. Garbage collection runs at different times on
each rank, so the owner record outlives the function.
"""

import atexit
import gc
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from tf_libra.coordination.control_plane import Control
from tf_libra.internal.process_state import STATE
from tf_libra.variable_sync.bound_variables import BoundVariable

Together = Callable[[Callable[[], None]], object]
"""Makes a call on all ranks, and raises on every rank if it fails on one."""


def make_call(call: Callable[[], None]) -> None:
    """Makes a call, whose error is of this rank alone."""
    call()


class ShardOwner(Protocol):
    """Knows which ranks have the values of a function's variables, but not the variables."""

    @property
    def is_stale(self) -> bool:
        """Returns whether a variable is current on some ranks only; the same on every rank."""
        ...

    @property
    def is_done(self) -> bool:
        """Returns whether the function and all its stale variables are gone."""
        ...

    def on_owner_collected(self) -> None:
        """Records that the function is gone."""
        ...

    def warn(self) -> None:
        """Warns, once, of values that only other ranks have, if the function is gone.

        Called after all unreachable objects were collected.
        """
        ...

    def synchronize(
        self, held: Mapping[int, BoundVariable], together: Together = make_call
    ) -> set[int]:
        """Synchronizes those of these variables, by key, that are stale; returns their keys.

        Args:
            held: the variables, by key.
            together: raises what has failed on this rank alone; then the variables stay stale.
        """
        ...

    def stale(self) -> dict[int, BoundVariable]:
        """Returns the stale variables that still exist, by numbers that all ranks share."""
        ...

    def trained(self) -> dict[int, str]:
        """Returns the names of the variables that its steps change, by key."""
        ...

    def forget_ranks(self) -> None:
        """Forgets which ranks have the values: those ranks have left the job."""
        ...


_OLDEST = len(gc.get_threshold()) - 1
"""Oldest generation of the garbage collector: collecting it collects everything."""


class ShardRegistry:
    """Registry of the owners of all sharded variables in this process."""

    def __init__(self) -> None:
        # By identity of the function, which gives the same order on every rank.
        self._owners: dict[str, ShardOwner] = {}
        self._job = 0  # `World.job` of the ranks that met last
        self._control: Control | None = None

    def register(self, function: str, keeper: ShardOwner, owner: object) -> None:
        """Registers the owner record of a function's variables.

        Args:
            function: identity of the function.
            keeper: the owner record.
            owner: object that lives as long as the function.
        """
        if not self._owners and self._on_collection not in gc.callbacks:
            gc.callbacks.append(self._on_collection)
            atexit.register(self._end)
        self._owners[function] = keeper
        weakref.finalize(owner, self._on_owner_collected, function, keeper).atexit = False

    def _on_owner_collected(self, function: str, keeper: ShardOwner) -> None:
        # Garbage collection may run anywhere, so no owner record is removed here.
        if self._owners.get(function) is keeper:
            keeper.on_owner_collected()

    # Variables often become unreachable with the function, as at the end of a script's main. Models
    # are reference cycles, which exist until they are collected: what outlives a collection of all
    # generations is still referenced.

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "stop" and info["generation"] == _OLDEST:
            for keeper in list(self._owners.values()):
                keeper.warn()

    def _end(self) -> None:
        """Warns at exit, before the interpreter clears modules and the script's objects."""
        if self.has_stale():
            gc.collect()
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def synchronize(
        self,
        held: Mapping[int, BoundVariable],
        but: ShardOwner | None = None,
        together: Together = make_call,
    ) -> set[int]:
        """Synchronizes variables that other functions have trained; all ranks call it.

        Args:
            held: the variables, by key.
            but: owner that needs the variables, which is left out.
            together: see `ShardOwner.synchronize`.

        Returns:
            Keys of the variables that were stale.

        Raises:
            tf.errors.OpError: a rank is gone or late.
        """
        found: set[int] = set()
        if self.has_stale(but):
            for _, keeper in sorted(self._owners.items(), key=lambda item: item[0]):
                if keeper is not but:
                    found |= keeper.synchronize(held, together)
        return found

    def begin_step(self, control: Control) -> None:
        """Records that a step that leaves stale values begins, on all ranks."""
        self._control = control

    def control(self) -> Control | None:
        """Returns what reaches the ranks that have to synchronize; None if no variable is stale.

        It is the same on every rank, although the owner records may differ.
        """
        return self._control

    def synchronize_all(self, control: Control) -> None:
        """Synchronizes all variables of all functions; all ranks call it, and return together.

        Variables that exist on some ranks only are left as they are.

        Raises:
            EngineError, tf.errors.OpError: a rank is gone or late.
        """
        keepers = dict(sorted(self._owners.items()))
        mine = {name: keeper.stale() for name, keeper in keepers.items()}
        everyone = control.all_gather({name: sorted(stale) for name, stale in mine.items()})
        for name, keeper in keepers.items():
            numbers = set.intersection(*(set(rank.get(name, ())) for rank in everyone))
            common = [mine[name][number] for number in sorted(numbers)]
            keeper.synchronize({variable.key: variable for variable in common})
        control.all_gather(None)
        self._control = None

    def names_trained_except(self, keys: Collection[int]) -> list[str]:
        """Returns the names of all sharded variables but those of these keys."""
        keepers = [keeper for _, keeper in sorted(self._owners.items())]
        return [
            name for keeper in keepers for key, name in keeper.trained().items() if key not in keys
        ]

    def trained_keys(self) -> set[int]:
        """Returns the keys of all sharded variables that steps change."""
        return {key for keeper in tuple(self._owners.values()) for key in keeper.trained()}

    def has_stale(self, but: ShardOwner | None = None) -> bool:
        """Returns whether any variable, except those of the owner `but`, is stale on some rank."""
        for name in [name for name, keeper in self._owners.items() if keeper.is_done]:
            del self._owners[name]
        return any(keeper.is_stale for keeper in self._owners.values() if keeper is not but)

    def begin_job(self, number: int) -> None:
        """Forgets the ranks of an earlier job, if `World.job` has changed."""
        if number != self._job:
            self.forget()
        self._job = number

    def forget(self) -> None:
        """Forgets which ranks have which values: they have left the job."""
        self._control = None
        for keeper in list(self._owners.values()):
            keeper.forget_ranks()


@STATE.value(on_reset=ShardRegistry.forget)
def shard_registry() -> ShardRegistry:
    """Returns the registry of all functions of this process."""
    return ShardRegistry()
