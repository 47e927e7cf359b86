"""Ctrl-C in a call that Python itself cannot interrupt. `test_deaths.py` has it in real steps."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tf_libra.runtime.interrupts import Interrupts

DEADLINE_SECONDS = 60.0


@pytest.fixture
def ended() -> threading.Event:
    return threading.Event()


@pytest.fixture
def interrupts(ended: threading.Event) -> Interrupts:
    return Interrupts(ended.set)


@pytest.fixture
def others() -> Iterator[socket.socket]:
    """Where somebody else reads signals, by a descriptor that must still be set afterwards."""
    reads, writes = socket.socketpair()
    with reads, writes:
        writes.setblocking(False)
        previous = signal.set_wakeup_fd(writes.fileno())
        yield reads
        assert signal.set_wakeup_fd(previous) == writes.fileno()


def deaf(ended: threading.Event, number: int = signal.SIGINT) -> Callable[[], Any]:
    """A call that goes on, whatever Python raises, until its wait is ended."""

    def call() -> str:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            assert ended.wait(DEADLINE_SECONDS)
        return "through"

    return call


def test_wait_is_ended(interrupts: Interrupts, ended: threading.Event) -> None:
    assert interrupts.during(deaf(ended)) == "through"
    assert ended.is_set()
    assert signal.set_wakeup_fd(-1) == -1


def test_interrupt_that_the_call_loses_is_raised(
    interrupts: Interrupts, ended: threading.Event
) -> None:
    def call() -> None:
        deaf(ended)()
        raise RuntimeError("the wait was ended")

    with pytest.raises(KeyboardInterrupt) as raised:
        interrupts.during(call)
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_call_may_raise(interrupts: Interrupts, ended: threading.Event) -> None:
    with pytest.raises(ZeroDivisionError):
        interrupts.during(lambda: 1 // 0)
    assert signal.set_wakeup_fd(-1) == -1
    assert interrupts.during(deaf(ended)) == "through"


def test_who_read_signals_before_still_does(
    interrupts: Interrupts, ended: threading.Event, others: socket.socket
) -> None:
    for _ in range(2):
        interrupts.during(deaf(ended))
        assert others.recv(64) == bytes([signal.SIGINT])


def test_other_signals_and_handlers_are_left_alone(
    interrupts: Interrupts, ended: threading.Event, others: socket.socket
) -> None:
    handled: list[int] = []
    for each in (signal.SIGUSR1, signal.SIGINT):
        before = signal.signal(each, lambda number, _: handled.append(number))
        try:
            interrupts.during(deaf(ended, each))
        finally:
            signal.signal(each, before)
        assert others.recv(64) == bytes([each])
    assert handled == [signal.SIGUSR1, signal.SIGINT]
    assert not ended.is_set()


def test_other_threads_set_nothing(interrupts: Interrupts) -> None:
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(interrupts.during(lambda: "called")))
    thread.start()
    thread.join()
    assert seen == ["called"]


def test_signals_of_a_forked_child_are_its_own(
    interrupts: Interrupts, ended: threading.Event
) -> None:
    def call() -> int:
        child = os.fork()
        if child == 0:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                os._exit(7)
            os._exit(8)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert interrupts.during(call) == 7
    assert not ended.is_set()
