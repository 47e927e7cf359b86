"""One-sided reads of slots of which each rank holds the part that it owns.

Before anything on a rank accesses such a slot between steps, the rank requests the other parts, as
they were after its last step, and threads of their owners answer (`read_service.py`). The slot is
whole on this rank until its next step.

A slot that the graph pass has left whole, such as a moving average of weights, needs no reads.

An owner may already be in its next step, but that step changes no slot before the gradients of all
ranks have arrived, and a rank that reads has not begun it. A part that is changed earlier all the
same, by the script between steps or by an update that does not wait for gradients, is kept until
the step has ended.
"""

import contextlib
import threading
import weakref
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.backends import collective_ops
from tf_libra.backends import engine as engine_lib
from tf_libra.coordination import control_plane, current_job
from tf_libra.coordination.signal_handling import step_interrupts
from tf_libra.internal import native
from tf_libra.variable_sync.read_service import (
    collected,
    hand_over,
    partial_answer,
    read_service,
)
from tf_libra.variable_sync.step_turns import StepTurns
from tf_libra.variable_sync.variable_access import variable_access

_HOST = "/cpu:0"


@dataclass(frozen=True, eq=False)
class Slot:
    """A slot variable, which exists as long as the script refers to it.

    Attributes:
        number: the same on all ranks.
        key: its key in this process.
        name: its name.
        handle: weak reference to its handle.
        dtype: dtype of its value.
        shape: static shape of its value.
    """

    number: int
    key: int
    name: str
    handle: "weakref.ref[Any]"
    dtype: tf.DType
    shape: tf.TensorShape


class SlotReads:
    """Parts of slots of one training function: those of this rank for others, and the reverse.

    It is an `AccessObserver` of the slots, and the `ServedValues` of the function.
    """

    def __init__(self, function: str, timeout_seconds: float) -> None:
        """Knows no slots yet.

        Args:
            function: identity of the training function, equal on all ranks.
            timeout_seconds: longest wait for a step or a read of this rank.
        """
        self.function = f"slots of {function}"
        self.is_released = False
        self._turns = StepTurns(self.function, timeout_seconds)
        self._values = threading.RLock()  # guards the next three; objects may end meanwhile
        self._slots: dict[int, Slot] = {}  # by key, those that ranks hold in parts
        self._handles: dict[int, Any] = {}  # which exist as long as other ranks may read
        # Own parts after the last step that may have other values now, by key.
        self._kept: dict[int, Any] = {}
        self._updated: Collection[int] = ()  # keys of those that the last step has updated

    # Around a step.

    def begin(
        self, slots: Mapping[int, Slot], updated: Collection[int], early: Collection[int]
    ) -> None:
        """Begins a step that updates slots in part; `leave` must follow.

        Args:
            slots: all slots that ranks hold in parts from now on, by key.
            updated: keys of those that the step updates; other traces update others.
            early: keys of those that the step may change before gradients have arrived.
        """
        self._turns.begin()
        with self._values:
            # All that are known are among them: most steps find no new ones.
            is_known = len(slots) == len(self._slots)
            new: Collection[int] = () if is_known else slots.keys() - self._slots.keys()
            self._slots |= {key: slots[key] for key in new}
            self._handles |= {key: slots[key].handle() for key in new}
            self._updated = updated
            for key in early:
                self._keep(key)  # a reference, so that the update copies the part
        if new:
            variable_access().observe(new, self)
        read_service().start(self)

    def leave(self, has_ended: bool) -> None:
        """Ends the step, if one has begun.

        Args:
            has_ended: whether the step has ended, as on all ranks, if only as their data have.
        """
        if has_ended and self._turns.is_computing:
            with self._values:
                for key in self._kept.keys() & self._updated:  # others are as they were
                    del self._kept[key]
        self._turns.leave(has_ended)

    def fetch_for_datasets(self) -> None:
        """Makes slots whole that functions of tf.data may access, which nothing observes."""
        in_datasets = variable_access().captured_by_datasets()
        if in_datasets:
            self.fetch([handle for handle in self.missing() if handle._id in in_datasets])

    @contextlib.contextmanager
    def gathering(self, keys: Collection[int]) -> Iterator[None]:
        """Wraps a call in which all ranks make slots whole together."""
        self._turns.begin(is_step=False)
        try:
            yield
            self.drop(keys)
        finally:
            self._turns.leave(has_ended=False)

    # On ranks that others read from.

    @property
    def serves(self) -> bool:
        """See `ServedValues`."""
        return bool(self._slots)

    @property
    def is_empty(self) -> bool:
        """See `ServedValues`."""
        return not self._slots

    def value(self, number: int, step: int, *answer: int) -> Any:
        """See `ServedValues`: returns the part of a slot that this rank owns."""
        self._turns.await_reader(step)
        with self._values:
            keys = [key for key, slot in self._slots.items() if slot.number == number]
            if not keys:
                raise KeyError(number)
            part = self._keep(keys[0]) if keys[0] in self._kept else self._read(keys[0])
        if part is None:
            raise KeyError(number)
        with tf.device(_HOST):
            return partial_answer(part, *answer)

    def keep(self, keys: Iterable[int]) -> None:
        """See `ServedValues`."""
        with self._values:
            known = self._slots.keys() & {*keys}
            with contextlib.suppress(tf.errors.OpError):  # no engine runs, so no rank reads
                for key in known:
                    self._keep(key)

    def hand_over(self) -> None:
        """See `ServedValues`; before that, this rank fetches what its script still refers to."""
        engine = engine_lib.running()
        if engine is None or not self.serves:
            return
        with self._values:
            for key in self._slots:
                self._keep(key)
            self._handles.clear()
        if not read_service().is_ending:  # else it reads nothing any more
            with contextlib.suppress(Exception):
                self.fetch(self.missing(), waits=False)
        hand_over(engine, self.function, self._turns.number)
        self.drop(tuple(self._slots))

    def forget(self, keys: Iterable[int]) -> None:
        """See `ServedValues`: other ranks may read the kept parts until the next step has ended."""

    def drop(self, keys: Iterable[int]) -> None:
        """Drops slots that are whole on every rank, or whose ranks are gone."""
        with self._values:
            known = self._slots.keys() & {*keys}
            variable_access().forget(known)
            for key in known:
                del self._slots[key]
                self._handles.pop(key, None)
                self._kept.pop(key, None)

    def drop_all(self) -> None:
        """Drops all slots, and ends waits for steps: the ranks have left the job."""
        self._turns.close()
        self.drop(tuple(self._slots))

    def release(self) -> None:
        """See `ServedValues`."""
        self.is_released = True

    def _keep(self, key: int) -> Any:
        """Returns the own part after the last step, from now on whatever the slot holds.

        None if it was whole.
        """
        part = self._kept.get(key)
        if part is None and (part := self._read(key)) is not None:
            self._kept[key] = part
        return part

    def _read(self, key: int) -> Any:
        """Returns what the slot holds; None if it is whole."""
        slot = self._slots[key]
        if not _is_part(slot):
            return None
        with tf.device(_HOST):
            return native.load().ops.libra_read_owned(resource=slot.handle(), dtype=slot.dtype)

    # On ranks that read.

    def missing(self) -> list[Any]:
        """See `ServedValues`: returns the handles of slots that this rank holds in part."""
        with self._values:
            found = [slot.handle() for slot in self._slots.values() if _is_part(slot)]
        return [handle for handle in found if handle is not None]

    def fetch(self, handles: Sequence[Any], waits: bool = True) -> None:
        """Makes those of these variables whole that this rank holds in part.

        Args:
            handles: handles of variables.
            waits: whether to wait for the end of a step; else `InStepError` is raised.

        Raises:
            HorovodInternalError, or `tf.errors.UnavailableError` under a strategy of TensorFlow:
                a rank that owns a part is gone or late.
            EngineError: an owner has no part to give, or the script of this rank is ending.
        """
        if not self._wanted(handles):
            return
        with self._turns.reading(waits):
            engine, wanted = engine_lib.running(), self._wanted(handles)
            if engine is None:
                return
            if read_service().is_ending:
                raise control_plane.EngineError(
                    f"{self.function} were read while the script of rank {engine.rank} is ending,"
                    " when other ranks may be gone: read them before its end"
                )
            errors: list[Exception] = []
            started: list[tuple[Slot, int, Any]] = []
            with collected(errors):
                for slot in wanted.values():
                    self._start(slot, engine, started)
            parts: dict[int, dict[int, Any]] = defaultdict(dict)
            for slot, rank, pending in started:  # all, as a later read would get what is left
                with collected(errors):
                    parts[slot.key][rank] = self._part(slot, rank, collective_ops.received(pending))
            if errors:
                raise self._lost(errors[0], next(iter(wanted.values()))) from errors[0]
            for slot in wanted.values():
                self._assign(slot, parts[slot.key], engine.rank)

    def _wanted(self, handles: Sequence[Any]) -> dict[int, Slot]:
        with self._values:
            known = [self._slots.get(handle._id) for handle in handles]
            return {slot.key: slot for slot in known if slot is not None and _is_part(slot)}

    def _start(
        self, slot: Slot, engine: engine_lib.Engine, started: list[tuple[Slot, int, Any]]
    ) -> None:
        """Begins to receive the parts of other ranks, but for empty ones."""
        size = slot.shape.num_elements()
        begin_of = native.load().c.TfLibraOwnedBegin
        borders = [begin_of(size, engine.world_size, i) for i in range(engine.world_size + 1)]
        for rank in range(engine.world_size):
            count = borders[rank + 1] - borders[rank]
            if rank == engine.rank or count == 0:
                continue
            answer = f"{count} {slot.dtype.as_datatype_enum}"
            name = f"{self.function}: {slot.number} {self._turns.modulus} {answer}"
            pending = collective_ops.receive_start(
                slot.dtype, [count + 1], rank, name, one_sided=True
            )
            started.append((slot, rank, pending))

    def _part(self, slot: Slot, rank: int, answer: Any) -> Any:
        with tf.device(_HOST):
            if answer[-1] != 0:
                return answer[:-1]
        raise control_plane.EngineError(
            f"slot {slot.name!r} of {self.function} has a part on rank {rank}, which cannot give it"
            " to this rank: its log has the reason"
        )

    def _assign(self, slot: Slot, parts: Mapping[int, Any], rank: int) -> None:
        with self._values:
            if slot.key not in self._slots or not _is_part(slot):
                return  # the script has left the job meanwhile, or has assigned it
            ordered = sorted({**parts, rank: self._keep(slot.key)}.items())
            handle = slot.handle()
            with tf.device(_HOST):
                whole = tf.reshape(tf.concat([part for _, part in ordered], 0), slot.shape)
                native.load().ops.libra_release_owned(resource=handle)  # else of another dtype
                tf.raw_ops.AssignVariableOp(resource=handle, value=whole)

    def _lost(self, error: Exception, slot: Slot) -> Exception:
        lost = control_plane.lost(error)
        if lost is None:
            return error
        return current_job.get_job().lost(
            f"slot {slot.name!r} of {self.function} has parts on all ranks: {lost}"
        )

    def take_over(self, owner: int, step: int) -> None:
        """See `ServedValues`; does nothing if this rank is in a later step, which will fail."""
        self._turns.await_end(step)
        self.fetch(self.missing(), waits=False)

    def on_access(self, handles: Sequence[Any]) -> None:
        """See `AccessObserver`.

        Raises:
            InStepError: a thread of TensorFlow reads during a step, as the step may wait for it.
        """
        if not self._wanted(handles):
            return
        # Threads that Python has not started, as those that run `tf.py_function`, have no object.
        is_of_tensorflow = isinstance(threading.current_thread(), threading._DummyThread)
        step_interrupts().during(lambda: self.fetch(handles, waits=not is_of_tensorflow))


def _is_part(slot: Slot) -> bool:
    """Returns whether a slot exists and holds the owned part alone, a scalar for TensorFlow."""
    handle = slot.handle()
    with tf.device(_HOST):
        if handle is None or slot.shape.rank:
            return handle is not None and tf.raw_ops.VariableShape(input=handle).shape[0] == 0
        try:
            tf.raw_ops.ReadVariableOp(resource=handle, dtype=slot.dtype)
        except tf.errors.InvalidArgumentError:
            return True
        return False
