"""Parts of slots that a rank gives to others, without another rank."""

import weakref
from collections.abc import Iterator
from signal import SIGTERM, Signals
from unittest import mock

import pytest
import tensorflow as tf

from tf_libra.backends import sharded_steps
from tf_libra.coordination.control_plane import EngineError
from tf_libra.coordination.signal_handling import step_interrupts
from tf_libra.variable_sync import slot_reads as slot_reads_lib
from tf_libra.variable_sync.owned_slots import OwnedSlots
from tf_libra.variable_sync.slot_parts import Slot
from tf_libra.variable_sync.slot_reads import SlotReads
from tf_libra.variable_sync.variable_access import variable_access

DTYPE = tf.float32.as_datatype_enum


class _Parts:
    """Slots of one element, which is the part of this rank; by number, those that are in parts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.variables = [tf.Variable([float(number)]) for number in range(count)]
        self.slots = {}
        for number, variable in enumerate(self.variables):
            handle = variable.handle
            self.slots[handle._id] = Slot(
                number, handle._id, variable.name, weakref.ref(handle), tf.float32, variable.shape
            )
        self.keys = list(self.slots)
        self.in_parts = set(range(count))
        monkeypatch.setattr(SlotReads, "_read", lambda _, key: self._read(key))
        monkeypatch.setattr(slot_reads_lib, "is_part", lambda slot: slot.number in self.in_parts)

    def _read(self, key: int) -> tf.Tensor | None:
        slot = self.slots[key]
        if slot.number not in self.in_parts:
            return None
        return tf.raw_ops.ReadVariableOp(resource=slot.handle(), dtype=tf.float32)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Parts]:
    yield _Parts(monkeypatch, 2)


def test_part_is_kept_while_steps_update_other_slots(parts: _Parts) -> None:
    """Another trace of the function has another optimizer."""
    reads = SlotReads("step", 60.0)
    first, second = parts.keys

    def step(key: int) -> None:
        reads.begin(parts.slots, updated={key}, early=())
        parts.in_parts.add(parts.slots[key].number)
        reads.leave(has_ended=True)

    step(first)
    reads.keep([first])
    parts.in_parts.remove(0)  # this rank reads the whole slot
    parts.variables[0].assign([7.0])
    step(second)
    assert reads.value(0, 2, 1, DTYPE).numpy().tolist() == [0.0, 1.0]
    step(first)
    assert reads.value(0, 0, 1, DTYPE).numpy().tolist() == [7.0, 1.0]
    reads.drop_all()


def test_step_counts_although_its_data_have_ended(parts: _Parts) -> None:
    """End of data fails on all ranks, which go on, after the step may have changed slots."""
    owned = OwnedSlots("step", 60.0)
    reads = owned._reads
    for number in range(2):
        with pytest.raises(tf.errors.OutOfRangeError), owned.computing():
            reads.begin(parts.slots, updated=parts.keys, early=parts.keys[:1])
            with variable_access().unobserved():
                parts.variables[0].assign([7.0 + number])
            raise tf.errors.OutOfRangeError(None, None, "end of sequence")
    assert reads.value(0, 2, 1, DTYPE).numpy().tolist() == [8.0, 1.0]
    with pytest.raises(ValueError, match="of another kind"), owned.computing():
        reads.begin(parts.slots, updated=parts.keys, early=parts.keys[:1])
        with variable_access().unobserved():
            parts.variables[0].assign([9.0])
        raise ValueError("of another kind")
    assert reads.value(0, 2, 1, DTYPE).numpy().tolist() == [8.0, 1.0]
    reads.drop_all()


@pytest.mark.parametrize(
    ("error", "signal", "seconds"),
    [(ValueError(), None, 30.0), (SystemExit(3), None, 1.0), (ValueError(), SIGTERM, 1.0)],
)
def test_failed_step_waits_for_complete_ones(
    parts: _Parts,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    signal: Signals | None,
    seconds: float,
) -> None:
    """A gather of the step before may end meanwhile; this step has not ended."""
    complete, waited = [4], []

    def wait(longest: float) -> bool:
        waited.append(longest)
        complete[0] = 5
        return True

    monkeypatch.setattr(sharded_steps, "await_steps", wait)
    monkeypatch.setattr(sharded_steps, "num_begun_steps", lambda: 5)
    monkeypatch.setattr(sharded_steps, "num_complete_steps", lambda: complete[0])
    monkeypatch.setattr(step_interrupts(), "came", signal)
    owned = OwnedSlots("step", 60.0)
    with pytest.raises(type(error)), owned.computing():
        owned._reads.begin(parts.slots, updated=parts.keys, early=())
        raise error
    assert waited == [seconds]
    assert owned._reads._turns.number == 0
    owned._reads.drop_all()


def after_a_step(parts: _Parts) -> SlotReads:
    reads = SlotReads("step", 60.0)
    reads.begin(parts.slots, updated=parts.keys, early=())
    reads.leave(has_ended=True)
    return reads


def test_slots_are_fetched_when_the_last_step_is_complete(
    parts: _Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure would undo no slot that is whole."""
    reads = after_a_step(parts)
    fetch = mock.Mock(return_value=({}, {0: EngineError("no part")}))
    monkeypatch.setattr(slot_reads_lib, "fetch_parts", fetch)
    monkeypatch.setattr(slot_reads_lib.engine_lib, "running", lambda: mock.Mock(rank=1))
    gathers = mock.Mock()
    gathers.complete.return_value = False
    monkeypatch.setattr(slot_reads_lib, "pending_gathers", lambda: gathers)
    with pytest.raises(Exception, match="the last step has failed"):
        reads.fetch([parts.variables[0].handle])
    fetch.assert_not_called()
    reads.drop_all()


@pytest.mark.parametrize("ranks_per_host", [1, 2, 0])
def test_all_ranks_of_a_host_rescue_slots_or_leave_them(
    parts: _Parts, monkeypatch: pytest.MonkeyPatch, ranks_per_host: int
) -> None:
    reads = after_a_step(parts)
    fetch = mock.Mock(return_value=({}, {}))
    monkeypatch.setattr(slot_reads_lib, "fetch_parts", fetch)
    monkeypatch.setattr(slot_reads_lib, "available_bytes", lambda: 2 * 2 * 4)
    engine = mock.Mock(rank=0, world_size=2, ranks_per_host=ranks_per_host)
    monkeypatch.setattr(slot_reads_lib.engine_lib, "running", lambda: engine)
    reads.rescue(None)
    assert fetch.called == (ranks_per_host == 1)
    reads.drop_all()


def test_read_while_the_script_is_ending_is_an_error(
    parts: _Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = after_a_step(parts)
    monkeypatch.setattr(slot_reads_lib.engine_lib, "running", lambda: mock.Mock(rank=1))
    monkeypatch.setattr(slot_reads_lib, "read_service", lambda: mock.Mock(is_ending=True))
    with pytest.raises(EngineError, match="the script of rank 1 is ending"):
        reads.fetch([parts.variables[0].handle])
    reads.drop_all()
