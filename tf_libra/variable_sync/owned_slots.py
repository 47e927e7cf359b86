"""Slot variables of which each rank holds the part that it owns.

Between steps with sharded updates a slot holds the owned part alone. TensorFlow cannot read or
assign such a variable: an error is raised until all ranks have gathered it.
"""

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.coordination.control_plane import Control
from tf_libra.internal import log_utils, native
from tf_libra.variable_sync import elastic_hooks, save_hooks
from tf_libra.variable_sync.bound_variables import BoundVariable
from tf_libra.variable_sync.sharded_variables import Together, make_call, shard_registry


def held_bytes(variable: Any) -> int:
    """Returns the bytes of a `tf.Variable`'s value on this rank, whole or an owned part."""
    handle, dtype = variable.handle, variable.dtype
    try:
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    except tf.errors.InvalidArgumentError:
        with tf.device("/cpu:0"):
            value = native.load().ops.libra_read_owned(resource=handle, dtype=dtype)
    return int(value.shape.num_elements() * dtype.size)


@dataclass(frozen=True, eq=False)
class _Slot:
    """A slot variable, which exists as long as the script refers to it."""

    number: int  # the same on all ranks
    name: str
    handle: weakref.ref[Any]
    dtype: tf.DType
    shape: tf.TensorShape


class OwnedSlots:
    """The slots of one training function that hold owned parts; a `ShardOwner`.

    It outlives the function while a slot holds its owned part alone.
    """

    def __init__(self, function: str) -> None:
        """Begins without slots.

        Args:
            function: identity of the training function.
        """
        self._function = function
        self._known: dict[int, _Slot] = {}  # by key of the variable
        self._owned: dict[int, _Slot] = {}
        self._control: Control | None = None
        self._is_collected = self._has_warned = False

    def __bool__(self) -> bool:
        """Returns whether a slot may hold its owned part alone; the same on every rank."""
        return bool(self._owned)

    def add(self, control: Control, slots: Sequence[BoundVariable], owner: object) -> None:
        """Adds slots that the next call updates in part, in the same order on all ranks.

        Args:
            control: reaches the ranks of the step.
            slots: the variables.
            owner: an object that lives as long as the function.
        """
        if not self._known:
            shard_registry().register(f"slots of {self._function}", self, owner)
        self._control = control
        elastic_hooks.begin_step(control)
        save_hooks.watch(self)
        for slot in slots:
            if slot.key not in self._known:
                self._known[slot.key] = _Slot(
                    len(self._known), slot.name, weakref.ref(slot.tensor), slot.dtype, slot.shape
                )
            self._owned[slot.key] = self._known[slot.key]

    def gather(self) -> None:
        """Makes all slots whole. All ranks must call it.

        Raises:
            tf.errors.OpError: a rank is gone, late, or elsewhere in its script.
        """
        self._gather(self._owned)

    def _gather(self, keys: Collection[int]) -> None:
        found = {key: slot for key, slot in self._owned.items() if key in keys}
        by_dtype: dict[tf.DType, list[_Slot]] = {}
        for slot in found.values():
            by_dtype.setdefault(slot.dtype, []).append(slot)
        assert self._control is not None
        with self._control.executing(f"synchronization of variables of {self._function}"):
            for dtype, slots in by_dtype.items():
                handles = {slot.number: slot.handle() for slot in slots}
                numbers = [number for number, handle in handles.items() if handle is not None]
                if not numbers:  # the script has dropped them, on all ranks
                    continue
                with tf.device("/cpu:0"):
                    native.load().ops.libra_gather_owned(
                        resources=[handles[number] for number in numbers],
                        dtype=dtype,
                        names=[f"slot {number}" for number in numbers],
                        function=self._function,
                    )
        for key in found:
            del self._owned[key]

    # The protocol `ShardOwner`.

    @property
    def is_stale(self) -> bool:
        """See `ShardOwner`."""
        return bool(self._owned)

    @property
    def is_done(self) -> bool:
        """See `ShardOwner`."""
        return self._is_collected and not self.stale()

    def on_owner_collected(self) -> None:
        """See `ShardOwner`."""
        self._is_collected = True

    def warn(self) -> None:
        """See `ShardOwner`."""
        stale = self.stale()
        if not self._is_collected or self._has_warned or not stale or self._control is None:
            return
        self._has_warned = True
        log_utils.logger(self._control.rank).warning(
            "%s was garbage-collected while %d optimizer slots (first: %r) were current on the"
            " ranks that own their parts only; call synchronize_variables() before dropping it",
            self._function,
            len(stale),
            next(iter(stale.values())).name,
        )

    def stale(self) -> dict[int, BoundVariable]:
        """See `ShardOwner`."""
        found = {}
        for slot in self._owned.values():
            handle = slot.handle()
            if handle is not None:
                found[slot.number] = BoundVariable(
                    slot.number, slot.name, handle, slot.dtype, slot.shape
                )
        return found

    def trained(self) -> dict[int, str]:
        """See `ShardOwner`."""
        return {key: s.name for key, s in self._known.items() if s.handle() is not None}

    def synchronize(
        self, held: Mapping[int, BoundVariable], together: Together = make_call
    ) -> set[int]:
        """See `ShardOwner`; ranks fail together, since one op gathers on all of them."""
        keys = self._owned.keys() & held.keys()
        if keys:
            self._gather(keys)
        return keys

    def forget_ranks(self) -> None:
        """See `ShardOwner`; slots stay unreadable, as the parts of other ranks are lost."""
        self._owned.clear()
