"""One-sided reads of slots of which each rank holds the part that it owns.

Before anything on a rank accesses such a slot between steps, the rank requests the other parts, as
they were after its last step, and threads of their owners answer (`read_service.py`). The slot is
whole on this rank until its next step.

A slot that the graph pass has left whole, such as a moving average of weights, needs no reads.

An owner may already be in its next step, but that step changes no slot before the gradients of all
ranks have arrived, and a rank that reads has not begun it. A part that is changed earlier all the
same, by the script between steps or by an update that does not wait for gradients, is kept until
the step has ended.

After an error that ends a step, all ranks fetch what they lack before the job ends (`rescue`). A
rank that is inside of the step assigns it when the step has failed there, too.
"""

import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tf_libra.backends import engine as engine_lib
from tf_libra.backends import sharded_steps
from tf_libra.coordination import control_plane, current_job
from tf_libra.coordination.signal_handling import step_interrupts
from tf_libra.internal import formatting, log_utils
from tf_libra.internal.available_memory import available_bytes
from tf_libra.variable_sync.pending_gathers import pending_gathers
from tf_libra.variable_sync.read_service import hand_over, partial_answer, read_service
from tf_libra.variable_sync.slot_parts import (
    Slot,
    assign_whole,
    fetch_parts,
    is_part,
    read_part,
)
from tf_libra.variable_sync.step_turns import InStepError, StepTurns
from tf_libra.variable_sync.variable_access import variable_access

_HOST = "/cpu:0"
# Longest wait of a rescue for the gathers of the last complete step, and how often it looks.
_GATHER_SECONDS = 10.0
_POLL_SECONDS = 0.01
_FAILED = "the last step has failed on some rank, and so on all"


@dataclass(frozen=True)
class _Rescued:
    """Parts of other ranks, by the slot's key and rank, from before a step that fails.

    Attributes:
        rank: this rank.
        complete: number of complete steps.
        parts: the parts.
    """

    rank: int = 0
    complete: int = -1
    parts: Mapping[int, Mapping[int, Any]] = field(default_factory=dict)


class SlotReads:
    """Parts of slots of one training function: those of this rank for others, and the reverse.

    It is an `AccessObserver` of the slots, and the `ServedValues` of the function.
    """

    rescues = True

    def __init__(self, function: str, timeout_seconds: float) -> None:
        """Knows no slots yet.

        Args:
            function: identity of the training function, equal on all ranks.
            timeout_seconds: longest wait for a step or a read of this rank.
        """
        self.function = f"slots of {function}"
        self.is_released = False
        self._turns = StepTurns(self.function, timeout_seconds)
        self._rescuing = threading.Lock()
        self._rescued = _Rescued()
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
        if self._rescued.parts:
            self._assign_rescued(waits=True)

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
        """See `ServedValues`: returns the part of a slot that this rank owns.

        A negative `step` asks for the part before all steps that are not complete: it is -1 less
        the number of complete ones.
        """
        part = self._part_before_steps(number, -1 - step) if step < 0 else self._part(number, step)
        if part is None:
            raise KeyError(number)
        with tf.device(_HOST):
            return partial_answer(part, *answer)

    def _part(self, number: int, step: int) -> Any:
        self._turns.await_reader(step)
        with self._values:
            key = self._numbered(number).key
            return self._keep(key) if key in self._kept else self._read(key)

    def _part_before_steps(self, number: int, complete: int) -> Any:
        self._await_complete(complete)
        if sharded_steps.num_complete_steps() != complete:
            raise KeyError(f"values after {complete} complete steps")
        with self._values:
            slot = self._numbered(number)
            if slot.handle() is None:  # the script has dropped it
                return self._kept.get(slot.key)
            return read_part(slot, before_steps=True)

    def _numbered(self, number: int) -> Slot:
        for slot in self._slots.values():
            if slot.number == number:
                return slot
        raise KeyError(number)

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
        return read_part(slot) if is_part(slot) else None

    # On ranks that read.

    def missing(self) -> list[Any]:
        """See `ServedValues`: returns the handles of slots that this rank holds in part."""
        with self._values:
            found = [slot.handle() for slot in self._slots.values() if is_part(slot)]
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
            if not wanted:
                return
            if engine is None:
                name = next(iter(wanted.values())).name
                raise control_plane.EngineError(
                    f"slot {name!r} of {self.function} has parts on other ranks of a job that is"
                    " over"
                )
            if read_service().is_ending:
                raise control_plane.EngineError(
                    f"{self.function} were read while the script of rank {engine.rank} is ending,"
                    " when other ranks may be gone: read them before its end"
                )
            if not pending_gathers().complete():  # which would not undo whole slots
                raise self._lost(_FAILED, next(iter(wanted.values())))
            parts, errors = fetch_parts(wanted.values(), engine, self.function, self._turns.modulus)
            if errors:
                key, error = next(iter(errors.items()))
                lost = control_plane.lost(error)
                raise error if lost is None else self._lost(lost, wanted[key]) from error
            for slot in wanted.values():
                self._assign(slot, parts[slot.key], engine.rank)

    def rescue(self, complete: int | None) -> None:
        """See `ServedValues`."""
        with self._rescuing:
            if complete is not None:
                self._await_complete(complete)
                pending_gathers().fail()
            engine, wanted = engine_lib.running(), self._wanted(self.missing())
            if engine is None or not wanted or not _fits(wanted.values(), engine):
                return
            complete = sharded_steps.num_complete_steps()
            parts, _ = fetch_parts(wanted.values(), engine, self.function, -1 - complete)
            self._rescued = _Rescued(engine.rank, complete, parts)
        if not self._turns.is_computing:  # else the end of the step assigns them
            with contextlib.suppress(InStepError):
                self._assign_rescued(waits=False)

    def _assign_rescued(self, waits: bool) -> None:
        with self._turns.reading(waits), self._values:
            rescued, self._rescued = self._rescued, _Rescued()
            if rescued.complete != sharded_steps.num_complete_steps():
                return  # the step has not failed here
            for key, parts in rescued.parts.items():
                slot = self._slots.get(key)
                if slot is not None and is_part(slot):
                    own = read_part(slot, before_steps=True)
                    assign_whole(slot, {**parts, rescued.rank: own})

    def _await_complete(self, complete: int) -> None:
        """Waits a while until a number of steps is complete; its last gathers may go on."""
        deadline = time.monotonic() + _GATHER_SECONDS
        while sharded_steps.num_complete_steps() < complete:
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_SECONDS)

    def _wanted(self, handles: Sequence[Any]) -> dict[int, Slot]:
        with self._values:
            known = [self._slots.get(handle._id) for handle in handles]
            return {slot.key: slot for slot in known if slot is not None and is_part(slot)}

    def _assign(self, slot: Slot, parts: Mapping[int, Any], rank: int) -> None:
        with self._values:
            if slot.key not in self._slots or not is_part(slot):
                return  # the script has left the job meanwhile, or has assigned it
            assign_whole(slot, {**parts, rank: self._keep(slot.key)})

    def _lost(self, reason: str, slot: Slot) -> Exception:
        return current_job.get_job().lost(
            f"slot {slot.name!r} of {self.function} has parts on all ranks: {reason}"
        )

    def take_over(self, owner: int, step: int) -> None:
        """See `ServedValues`; in a later step, which will fail, it rescues."""
        self._turns.await_end(step)
        try:
            self.fetch(self.missing(), waits=False)
        except InStepError:
            sharded_steps.await_steps(_GATHER_SECONDS)
            self.rescue(None)

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


def _fits(slots: Iterable[Slot], engine: engine_lib.Engine) -> bool:
    """Returns whether memory holds the parts of other ranks, and then the whole slots.

    All ranks of a host rescue slots concurrently.
    """
    num_ranks = engine.ranks_per_host or engine.world_size
    needed = num_ranks * sum(2 * slot.shape.num_elements() * slot.dtype.size for slot in slots)
    available = available_bytes()
    if available is None or needed <= available:
        return True
    log_utils.logger(engine.rank).warning(
        "slots stay in parts: on %s ranks of this host they would take %s of memory, of which %s"
        " are available",
        num_ranks,
        formatting.size(needed),
        formatting.size(available),
    )
    return False
