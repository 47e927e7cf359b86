"""Answers to other ranks, without another rank."""

import atexit
import queue
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf

from tf_libra.backends import collective_ops
from tf_libra.coordination.control_plane import EngineError
from tf_libra.variable_sync import read_service as read_service_lib
from tf_libra.variable_sync.read_service import ReadService, ServedValues, partial_answer


def test_answers_tell_values_from_none() -> None:
    dtype = tf.float32.as_datatype_enum
    assert partial_answer(tf.constant([2.0, 3.0]), 2, dtype).numpy().tolist() == [2, 3, 1]
    assert partial_answer(None, 2, dtype).numpy().tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="must have 1 elements"):
        partial_answer(tf.constant([2.0, 3.0]), 1, dtype)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[list[float], int, str]]]:
    """Returns what a service sends: values, rank and name."""
    found: list[tuple[list[float], int, str]] = []

    def send(tensor: Any, to_rank: int, name: str, one_sided: bool) -> None:
        assert one_sided
        found.append((tensor.numpy().tolist(), to_rank, name))

    monkeypatch.setattr(collective_ops, "send", send)
    monkeypatch.setattr(read_service_lib, "_start", lambda call: call())
    monkeypatch.setattr(read_service_lib, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(read_service_lib, "_engine", lambda: 0)
    yield found


def test_rank_that_cannot_take_over_confirms_all_the_same(
    sent: list[tuple[list[float], int, str]],
) -> None:
    """The other rank would wait for it at the end of its script."""
    service, reads = ReadService(), mock.create_autospec(ServedValues, instance=True)
    reads.take_over.side_effect = EngineError("rank 2 is gone")
    service._reads["slots of step"] = reads
    name = "slots of step: hand over after step 3"
    service._answer(0, 1, name)
    reads.take_over.assert_called_once_with(1, 3)
    assert sent == [([], 1, name)]


def test_all_functions_are_rescued_before_the_notice_is_confirmed(
    sent: list[tuple[list[float], int, str]],
) -> None:
    service = ReadService()
    functions = [mock.create_autospec(ServedValues, instance=True) for _ in range(2)]
    for number, reads in enumerate(functions):
        service._reads[str(number)] = reads
    functions[0].rescue.side_effect = EngineError("rank 2 is gone")
    name = "all functions: rescue after 3"
    service._answer(0, 1, name)
    for reads in functions:
        reads.rescue.assert_called_once_with(3)
    assert sent == [([], 1, name)]


def test_reads_of_parts_can_be_refused(sent: list[tuple[list[float], int, str]]) -> None:
    service = ReadService()
    name = f"slots of step: 0 1 2 {tf.float32.as_datatype_enum}"
    with pytest.raises(KeyError):
        service._answer(0, 1, name)
    assert service._refuse(0, 1, name)
    assert sent == [([0, 0, 0], 1, name)]
    assert not service._refuse(0, 1, "step: 0 1")


def test_answer_of_an_earlier_engine_is_not_sent(
    sent: list[tuple[list[float], int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, reads = ReadService(), mock.create_autospec(ServedValues, instance=True)
    service._reads["step"] = reads

    def next_engine(*_: Any) -> Any:
        monkeypatch.setattr(read_service_lib, "_engine", lambda: 1)
        return tf.zeros([2])

    reads.value.side_effect = reads.take_over.side_effect = next_engine
    for what in ("0 1", "hand over after step 3"):
        monkeypatch.setattr(read_service_lib, "_engine", lambda: 0)
        service._answer(0, 1, f"step: {what}")
    assert service._refuse(0, 1, f"step: 0 1 2 {tf.float32.as_datatype_enum}")
    reads.value.assert_called_once_with(0, 1)
    reads.take_over.assert_called_once_with(1, 3)
    assert sent == []


def test_thread_of_an_earlier_engine_does_not_keep_the_next_from_having_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first engine is closed while its thread waits; the ranks' job is the same."""
    requests: queue.Queue[int] = queue.Queue()
    may_end = threading.Event()

    def engine(number: int) -> Any:
        def await_read(_: float) -> None:
            requests.put(number)
            may_end.wait()

        return mock.Mock(job=0, number=number, await_read=await_read)

    service, reads = ReadService(), mock.create_autospec(ServedValues, instance=True)
    reads.function, reads.is_released = "step", False
    threads = []
    for number in range(2):
        monkeypatch.setattr(read_service_lib.engine_lib, "running", partial(engine, number))
        for _ in range(2):
            service.start(reads)
        threads.append(service._thread)
        assert requests.get(timeout=60) == number
    monkeypatch.setattr(read_service_lib.engine_lib, "running", lambda: None)
    may_end.set()
    for thread in threads:
        assert thread is not None
        thread.join()
    assert requests.empty()
    atexit.unregister(service._end)


def test_nothing_is_taken_over_by_a_later_engine(
    sent: list[tuple[list[float], int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner has closed the engine of its notice, and answers no read of it any more."""
    service, reads = ReadService(), mock.create_autospec(ServedValues, instance=True)
    service._reads["step"] = reads

    def wait(_: float) -> bool:
        monkeypatch.setattr(read_service_lib, "_engine", lambda: 1)
        return False

    monkeypatch.setattr(service._ending, "wait", wait)
    service._answer(0, 1, "step: hand over after step 3")
    reads.take_over.assert_not_called()
    assert sent == []


def test_error_of_one_function_keeps_no_other_from_handing_over() -> None:
    service = ReadService()
    functions = [mock.create_autospec(ServedValues, instance=True) for _ in range(2)]
    for number, reads in enumerate(functions):
        service._reads[str(number)] = reads
    functions[0].fetch.side_effect = functions[0].hand_over.side_effect = RuntimeError
    service.settle()
    functions[1].fetch.assert_called_once()
    functions[1].hand_over.assert_called_once()
