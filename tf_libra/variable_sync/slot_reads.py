"""One-sided reads of slots of which each rank holds the part that it owns.

Before anything on a rank accesses such a slot outside of a step, the rank requests the other parts,
as they were after its last step, and threads of their owners answer (`read_service.py`).
The slot is whole on this rank until its next step. No other rank can have changed its part in the
meantime, since updates need the gradients of all ranks.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.backends import collective_ops
from tf_libra.backends import engine as engine_lib
from tf_libra.coordination import control_plane, current_job
from tf_libra.coordination.signal_handling import step_interrupts
from tf_libra.internal import native
from tf_libra.variable_sync.read_service import ERRORS, EndedSteps, hand_over, read_service
from tf_libra.variable_sync.variable_access import variable_access


@dataclass(frozen=True, eq=False)
class Slot:
    """A slot variable, which exists as long as the script refers to it.

    Attributes:
        number: the same on all ranks.
        name: its name.
        handle: weak reference to its handle.
        dtype: dtype of its value.
        shape: static shape of its value.
    """

    number: int
    name: str
    handle: weakref.ref[Any]
    dtype: tf.DType
    shape: tf.TensorShape


class SlotReads:
    """Parts of slots of one training function: those of this rank for others, and the reverse.

    It is an `AccessObserver` of the slots, and a `Readable` of the read service.
    """

    def __init__(self, function: str) -> None:
        """Knows no slots yet.

        Args:
            function: identity of the training function, equal on all ranks.
        """
        self.function = f"slots of {function}"
        self.is_released = False
        self._steps = EndedSteps()
        self._fetching = threading.RLock()
        self._values = threading.Lock()  # guards the next three
        self._slots: dict[int, Slot] = {}  # by key, those that ranks hold in parts
        self._handles: dict[int, Any] = {}  # which exist as long as other ranks may read
        self._whole: set[int] = set()  # keys of those that are whole here
        self._before_access: dict[int, Any] = {}  # own parts after the last step, by key

    # Around a step.

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Wraps a call, during which no other thread of this rank fetches."""
        with self._fetching, variable_access().unobserved():
            yield

    def begin(self, slots: Mapping[int, Slot]) -> None:
        """Begins a step that updates slots, by key, in part."""
        with self._values:
            self._whole.clear()
            self._before_access.clear()
            self._slots.update(slots)
            self._handles = {key: slot.handle() for key, slot in self._slots.items()}

    def end(self) -> None:
        """Ends a step, the same on all ranks, and observes accesses to the slots."""
        variable_access().observe(self._slots, self)
        self._steps.end()
        read_service().start(self)

    # On ranks that others read from.

    @property
    def serves(self) -> bool:
        """See `Readable`."""
        return bool(self._slots)

    @property
    def is_empty(self) -> bool:
        """See `Readable`."""
        return not self._slots

    def value(self, number: int, step: int) -> Any:
        """See `Readable`: returns the part of a slot that this rank owns."""
        self._steps.await_reader(step)
        with self._values:
            for key, slot in self._slots.items():
                if slot.number == number:
                    part = self._before_access.get(key)
                    return _own_part(slot, self._handles[key]) if part is None else part
        raise KeyError(number)

    def hand_over(self) -> None:
        """See `Readable`; before that, this rank fetches what it has no access to later."""
        if self.serves:
            if not read_service().is_ending:
                self.fetch(self.missing())
            hand_over(self.function, self._steps.number)
            self.forget(tuple(self._slots))

    # On ranks that read.

    def missing(self) -> list[Any]:
        """See `Readable`: returns the handles of slots that this rank holds in part."""
        return [handle for key, handle in self._handles.items() if key not in self._whole]

    def fetch(self, handles: Sequence[Any]) -> None:
        """Makes those of these variables whole that this rank holds in part.

        Raises:
            HorovodInternalError, or `tf.errors.UnavailableError` under a strategy of TensorFlow:
                a rank that owns a part is gone or late.
        """
        with self._fetching:
            wanted = {
                handle._id: self._slots[handle._id]
                for handle in handles
                if handle._id in self._slots and handle._id not in self._whole
            }
            engine = engine_lib.running()
            if not wanted or engine is None:
                return
            try:
                started = {key: self._start(slot, engine) for key, slot in wanted.items()}
                for key, parts in started.items():
                    self._assign(key, parts, engine.rank)
            except ERRORS as error:
                lost = control_plane.lost(error)
                if lost is None:
                    raise
                name = next(iter(wanted.values())).name
                what = f"slot {name!r} of {self.function} has parts on all ranks: {lost}"
                raise current_job.get_job().lost(what) from error

    def _start(self, slot: Slot, engine: engine_lib.Engine) -> list[Any]:
        """Begins to receive the parts of a slot, by rank; None for the own and for empty ones."""
        name = f"{self.function}: {slot.number} {self._steps.modulus}"
        started = []
        for rank in range(engine.world_size):
            begin, end = _borders(slot, engine.world_size, rank)
            is_remote = rank != engine.rank and end > begin
            started.append(
                collective_ops.receive_start(slot.dtype, [end - begin], rank, name, one_sided=True)
                if is_remote
                else None
            )
        return started

    def _assign(self, key: int, started: Sequence[Any], rank: int) -> None:
        slot = self._slots[key]
        with self._values:
            own = _own_part(slot, self._handles[key])
            self._before_access[key] = own
        parts = [collective_ops.received(part) for part in started if part is not None]
        parts.insert(sum(part is not None for part in started[:rank]), own)
        handle = self._handles[key]
        with tf.device("/cpu:0"):
            native.load().ops.libra_release_owned(resource=handle)
            whole = tf.reshape(tf.concat(parts, 0), slot.shape)
        tf.raw_ops.AssignVariableOp(resource=handle, value=whole)
        self._whole.add(key)

    def take_over(self, owner: int, step: int) -> None:
        """See `Readable`."""
        self._steps.await_end(step)
        self.fetch(self.missing())

    # On all ranks.

    def on_access(self, handles: Sequence[Any]) -> None:
        """See `AccessObserver`."""
        if any(handle._id in self._slots for handle in handles):
            step_interrupts().during(lambda: self.fetch(handles))

    def forget(self, keys: Iterable[int]) -> None:
        """Forgets slots that are whole on every rank, or whose ranks are gone."""
        with self._fetching, self._values:
            known = self._slots.keys() & {*keys}
            variable_access().forget(known)
            for key in known:
                del self._slots[key], self._handles[key]
                self._before_access.pop(key, None)
            self._whole -= known

    def release(self) -> None:
        """See `Readable`."""
        self.is_released = True


def _borders(slot: Slot, world_size: int, rank: int) -> tuple[int, int]:
    """Returns the elements that a rank owns."""
    begin_of, count = native.load().c.TfLibraOwnedBegin, slot.shape.num_elements()
    return begin_of(count, world_size, rank), begin_of(count, world_size, rank + 1)


def _own_part(slot: Slot, handle: Any) -> Any:
    """Returns the part that this rank owns, of a slot that may be whole."""
    with tf.device("/cpu:0"):
        try:
            whole = tf.raw_ops.ReadVariableOp(resource=handle, dtype=slot.dtype)
        except tf.errors.InvalidArgumentError:
            return native.load().ops.libra_read_owned(resource=handle, dtype=slot.dtype)
        engine = engine_lib.running()
        assert engine is not None
        begin, end = _borders(slot, engine.world_size, engine.rank)
        return tf.reshape(whole, [-1])[begin:end]
