"""Slot variables of which each rank holds the part that it owns.

Between steps with sharded updates a slot holds the owned part alone. Whatever reads or assigns it
on some rank first makes it whole there (`slot_reads.py`), until the next step. All ranks make slots
whole together before a step that needs them so.
"""

import contextlib
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_libra.backends import sharded_steps
from tf_libra.coordination.control_plane import Control
from tf_libra.internal import native
from tf_libra.variable_sync import elastic_hooks
from tf_libra.variable_sync.bound_variables import BoundVariable
from tf_libra.variable_sync.pending_gathers import pending_gathers
from tf_libra.variable_sync.sharded_variables import Together, make_call, shard_registry
from tf_libra.variable_sync.slot_parts import Slot
from tf_libra.variable_sync.slot_reads import SlotReads


def held_bytes(variable: Any) -> int:
    """Returns the bytes of a `tf.Variable`'s value on this rank, whole or an owned part."""
    handle, dtype = variable.handle, variable.dtype
    try:
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    except tf.errors.InvalidArgumentError:
        with tf.device("/cpu:0"):
            value = native.load().ops.libra_read_owned(resource=handle, dtype=dtype)
    return int(value.shape.num_elements() * dtype.size)


def gather_owned(
    control: Control,
    function: str,
    variables: Iterable[tuple[str, tf.DType, Any]],
    of_step: bool = False,
) -> None:
    """Gathers the owned parts of variables. All ranks must call it.

    Args:
        control: reaches the other ranks.
        function: identity of the training function.
        variables: name, dtype and handle of each, in the same order on all ranks.
        of_step: whether they are weights of a step that is not complete, as `undo_steps` undoes it.

    Raises:
        tf.errors.OpError: a rank is gone, late, or elsewhere in its script.
    """
    by_dtype: dict[tf.DType, list[tuple[str, Any]]] = {}
    for name, dtype, handle in variables:
        by_dtype.setdefault(dtype, []).append((name, handle))
    with control.executing(f"synchronization of variables of {function}"), tf.device("/cpu:0"):
        for dtype, found in by_dtype.items():
            native.load().ops.libra_gather_owned(
                resources=[handle for _, handle in found],
                dtype=dtype,
                names=[name for name, _ in found],
                function=function,
                of_step=of_step,
            )


class OwnedSlots:
    """The slots of one training function that hold owned parts; a `ShardOwner`.

    It outlives the function while a slot holds its owned part alone.
    """

    def __init__(self, function: str, timeout_seconds: float) -> None:
        """Begins without slots.

        Args:
            function: identity of the training function.
            timeout_seconds: longest wait of a step for a thread that reads slots, and the reverse.
        """
        self._function = function
        self._reads = SlotReads(function, timeout_seconds)
        self._known: dict[int, Slot] = {}  # by key of the variable
        self._owned: dict[int, Slot] = {}
        # Slots of the last step, if they are known to be still owned, and their keys.
        self._last: Sequence[BoundVariable] | None = None
        self._updated: frozenset[int] = frozenset()
        self._control: Control | None = None
        self._is_collected = False

    def __bool__(self) -> bool:
        """Returns whether a slot may hold its owned part alone; the same on every rank."""
        return bool(self._owned)

    def begin(
        self,
        control: Control,
        slots: Sequence[BoundVariable],
        early: Collection[int],
        owner: object,
    ) -> None:
        """Begins a step, inside of `computing`, that updates slots in part.

        Args:
            control: reaches the ranks of the step.
            slots: the variables, in the same order on all ranks.
            early: keys of those that the step may change before gradients have arrived.
            owner: an object that lives as long as the function.

        Raises:
            EngineError: a thread of this rank has not ended its read of slots in time.
        """
        if not self._known:
            shard_registry().register(f"slots of {self._function}", self, owner)
        self._control = control
        elastic_hooks.begin_step(control)
        if slots is not self._last:
            self._last = slots
            self._updated = frozenset(slot.key for slot in slots)
            for slot in slots:
                self._own(slot)
        self._reads.begin(self._owned, self._updated, early)

    def _own(self, slot: BoundVariable) -> None:
        if slot.key not in self._known:
            reference = weakref.ref(slot.tensor)
            self._known[slot.key] = Slot(
                len(self._known), slot.key, slot.name, reference, slot.dtype, slot.shape
            )
        self._owned[slot.key] = self._known[slot.key]

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Wraps a call that may begin a step; no thread of this rank reads slots meanwhile."""
        has_ended = False
        num_begun = sharded_steps.num_begun_steps()  # gathers of the last one may go on
        try:
            yield
            sharded_steps.end_call()
            has_ended = True
        except tf.errors.OutOfRangeError:  # on all ranks, if they go on; it may have changed slots
            has_ended = True
            raise
        except BaseException as error:
            pending_gathers().undo(is_exit=isinstance(error, KeyboardInterrupt | SystemExit))
            has_ended = sharded_steps.num_complete_steps() > num_begun
            raise
        finally:
            self._reads.leave(has_ended)
        self._reads.fetch_for_datasets()

    def gather(self) -> None:
        """Makes all slots whole. All ranks must call it.

        Raises:
            tf.errors.OpError: a rank is gone, late, or elsewhere in its script.
        """
        self._gather(self._owned)

    def _gather(self, keys: Collection[int]) -> None:
        found = {key: slot for key, slot in self._owned.items() if key in keys}
        # On all ranks, the script has dropped those without a handle.
        slots = [(f"slot {slot.number}", slot.dtype, slot.handle()) for slot in found.values()]
        present = [slot for slot in slots if slot[-1] is not None]
        assert self._control is not None
        with self._reads.gathering(found):
            gather_owned(self._control, self._function, present)
        self._last = None
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
        self._is_collected, self._last = True, None
        sharded_steps.free_spares()
        self._reads.release()

    def warn(self) -> None:
        """See `ShardOwner`: nothing is lost, since other ranks take over what they lack."""

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
        """See `ShardOwner`; slots get unreadable, as the parts of other ranks are lost."""
        self._owned.clear()
        self._last = None
        self._reads.drop_all()
