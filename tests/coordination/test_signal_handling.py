"""Ctrl-C in a call that Python itself cannot interrupt. `test_deaths.py` has it in real steps."""

import ctypes
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tf_libra.coordination import control_plane
from tf_libra.coordination.signal_handling import Interrupts, step_interrupts
from tf_libra.launcher import worker_hooks

DEADLINE_SECONDS = 60.0


@pytest.fixture
def ended() -> threading.Event:
    return threading.Event()


@pytest.fixture
def interrupts(ended: threading.Event) -> Interrupts:
    return Interrupts(lambda _: ended.set(), patience_seconds=0.0)


@pytest.fixture
def others() -> Iterator[socket.socket]:
    """A foreign reader of signals, by a descriptor that must still be set afterwards."""
    reads, writes = socket.socketpair()
    with reads, writes:
        writes.setblocking(False)
        reads.settimeout(DEADLINE_SECONDS)
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


def test_preparations_come_before_the_end_of_the_wait(
    interrupts: Interrupts, ended: threading.Event
) -> None:
    found: list[bool] = []

    def prepare() -> None:
        found.append(ended.is_set())

    for _ in range(2):
        interrupts.before_the_end(prepare)
    interrupts.during(deaf(ended))
    assert found == [False]


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


def test_previous_reader_of_signals_still_gets_them(
    interrupts: Interrupts, ended: threading.Event, others: socket.socket
) -> None:
    for _ in range(2):
        interrupts.during(deaf(ended))
        assert others.recv(64) == bytes([signal.SIGINT])


@contextmanager
def handled(number: int, handler: Callable[[int, Any], Any]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_error_of_a_rank_that_lost_another_by_the_same_signal_is_not_raised(
    ended: threading.Event,
) -> None:
    interrupts = Interrupts(lambda _: ended.set(), patience_seconds=DEADLINE_SECONDS)

    def call() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            until = time.monotonic() + DEADLINE_SECONDS
            while interrupts.came is None and time.monotonic() < until:
                time.sleep(0.001)
        raise RuntimeError("rank 1 is gone")

    with pytest.raises(KeyboardInterrupt) as raised:
        interrupts.during(call)
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert not ended.is_set()


def test_other_signals_and_handlers_are_left_alone(
    interrupts: Interrupts, ended: threading.Event, others: socket.socket
) -> None:
    seen: list[int] = []

    def call() -> None:
        # What is forwarded second tells that the first was judged, in the middle of the call.
        for each in (signal.SIGUSR1, signal.SIGINT, signal.SIGUSR1):
            signal.raise_signal(each)
            assert others.recv(64) == bytes([each])

    def handler(number: int, _: Any) -> None:
        seen.append(number)

    with handled(signal.SIGUSR1, handler), handled(signal.SIGINT, handler):
        interrupts.during(call)
    assert seen == [signal.SIGUSR1, signal.SIGINT, signal.SIGUSR1]
    assert not ended.is_set()


def test_call_that_ends_by_itself_is_not_ended(
    ended: threading.Event, others: socket.socket
) -> None:
    interrupts = Interrupts(lambda _: ended.set(), patience_seconds=DEADLINE_SECONDS)

    def healthy() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            assert others.recv(64) == bytes([signal.SIGINT])
            assert not ended.wait(0.2)  # as long as a healthy step

    def after_it() -> None:
        signal.raise_signal(signal.SIGUSR1)
        assert others.recv(64) == bytes([signal.SIGUSR1])

    with pytest.raises(KeyboardInterrupt):
        interrupts.during(healthy)
    with handled(signal.SIGUSR1, lambda *_: None):
        interrupts.during(after_it)
    assert not ended.is_set()


@pytest.mark.parametrize("is_said", [False, True])
def test_final_reports_are_written_while_a_worker_still_computes(
    tmp_path: Path, is_said: bool
) -> None:
    """After its wait was ended, and not where it has been said already."""
    reported: list[str] = []
    line = tmp_path / "line"
    os.mkfifo(line)
    interrupts = Interrupts(lambda _: reported.append("ended"), 0.0, last_seconds=0.0)

    def summary() -> None:
        reported.append("summary")

    def last() -> None:
        line.write_text("through")

    def computing() -> None:
        # In C, where no handler of Python's runs, until all was said.
        command = f"kill -TERM {os.getpid()}; timeout {DEADLINE_SECONDS} cat {line} > {line}.read"
        ctypes.CDLL(None).system(command.encode())

    interrupts.at_the_end(summary)
    if is_said:
        interrupts.not_at_the_end(summary)
    interrupts.at_the_end(last)
    with handled(signal.SIGTERM, worker_hooks.end), pytest.raises(SystemExit):
        interrupts.during(computing)
    assert control_plane.why_program_ends() == "it received SIGTERM"
    worker_hooks.ending.discard()
    assert Path(f"{line}.read").read_text() == "through"
    # These two are called in any order, and the call is over when both are.
    assert reported == (["ended"] if is_said else ["ended", "summary"])


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


def test_forked_child_listens_for_itself() -> None:
    of_the_parent = step_interrupts()
    child = os.fork()
    if child == 0:
        os._exit(7 if step_interrupts() is not of_the_parent else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert step_interrupts() is of_the_parent
