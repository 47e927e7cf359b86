"""Ctrl-C and SIGTERM while a step waits for other ranks.

`tf-libra run` forwards Ctrl-C to its workers as SIGTERM, and kills remaining workers some seconds
later. Python runs signal handlers in the main thread, between two bytecodes, but a step that waits
for another rank keeps that thread in C++. The interpreter also writes the number of each signal to
a descriptor immediately (`signal.set_wakeup_fd`), which another thread reads here.

An aborted step may have applied the gradients of some groups only, so a step gets time to end by
itself. Computation cannot be aborted: if it lasts until the launcher is about to kill the worker,
final reports are written in the meantime.
"""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from tf_libra.coordination import control_plane
from tf_libra.internal import native
from tf_libra.internal.process_state import STATE
from tf_libra.launcher import worker_hooks

PATIENCE_SECONDS = 1.0
# After the patience. Horovod's launcher kills workers five seconds after the signal.
_LAST_SECONDS = 2.5
# Handlers that end the process by an exception, and the reason that other ranks receive.
_ENDING = {
    signal.SIGINT: (signal.default_int_handler, "KeyboardInterrupt: Ctrl-C"),
    signal.SIGTERM: (worker_hooks.end, control_plane.TERMINATED),
}

_Result = TypeVar("_Result")


class Interrupts:
    """Ends waits in C++ on Ctrl-C, and on SIGTERM in a worker of `tf-libra run`.

    It acts only if the signal's handler is about to end the script. A script that installs another
    handler, for example to stop after the present step, is left alone.

    Attributes:
        came: signal that ends the present call; None if there was none.
    """

    def __init__(
        self,
        end_wait: Callable[[str], None],
        patience_seconds: float = PATIENCE_SECONDS,
        last_seconds: float = _LAST_SECONDS,
    ) -> None:
        """Starts the thread that reads signals.

        Args:
            end_wait: ends all waits for other ranks, with a reason; called in that thread.
            patience_seconds: how long a call may go on after the signal, to end by itself.
            last_seconds: how long it may go on after `end_wait`, before the callbacks of
                `at_the_end` are called.
        """
        self._end_wait = end_wait
        self._patience_seconds = patience_seconds
        self._last_seconds = last_seconds
        self._exit_callbacks: set[Callable[[], None]] = set()
        self._preparations: set[Callable[[], None]] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()  # set when the present call ends; one event per call
        self._over.set()
        self.came: int | None = None
        self._others = -1  # wakeup descriptor of another component, if any
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        os.register_at_fork(after_in_child=self._leave)
        threading.Thread(target=self._listen, name="libra interrupts", daemon=True).start()

    def at_the_end(self, speak: Callable[[], None]) -> None:
        """Registers a callback for a worker that is about to be killed after SIGTERM.

        It is called in the reading thread, while the main thread is in a call.
        """
        self._exit_callbacks.add(speak)

    def before_the_end(self, prepare: Callable[[], None]) -> None:
        """Registers a callback before waits are ended, for what needs other ranks until then.

        It is called in the reading thread, while the main thread is in a call.
        """
        self._preparations.add(prepare)

    def not_at_the_end(self, speak: Callable[[], None]) -> None:
        """Removes a callback."""
        self._exit_callbacks.discard(speak)

    def during(self, call: Callable[[], _Result]) -> _Result:
        """Makes a call, and ends its waits on a signal.

        Other threads only make the call, and so does a call of `during` within another one.
        """
        if threading.current_thread() is not threading.main_thread() or not self._over.is_set():
            return call()
        try:
            previous = _wake(self._writer.fileno())
            if previous != self._writer.fileno():  # equal if a signal came just before
                self._others = previous
            self.came, self._over = None, threading.Event()
            return call()
        except Exception as error:
            if self.came is not None:
                # TensorFlow's error has replaced the handler's exception, or another rank got the
                # signal first.
                raise _exception(self.came) from error
            raise
        finally:
            with self._lock:
                self._over.set()
            _wake(self._others)

    def _listen(self) -> None:
        while numbers := self._reader.recv(64):
            over = self._over
            if self._others >= 0:
                with contextlib.suppress(OSError):
                    os.write(self._others, numbers)
            # Handlers are looked up here and not in each step, which would take longer.
            ending = [n for n in numbers if n in _ENDING and _raises(n)]
            if not ending or over.is_set():
                continue
            self.came = ending[0]
            if over.wait(self._patience_seconds):
                continue
            for prepare in tuple(self._preparations):
                prepare()
            with self._lock:
                if not over.is_set():
                    self._end_wait(_ENDING[signal.Signals(ending[0])][1])
            if ending[0] == signal.SIGTERM and not over.wait(self._last_seconds):
                with self._lock:
                    if not over.is_set():
                        for speak in tuple(self._exit_callbacks):
                            speak()

    def _leave(self) -> None:
        """Restores the descriptor in a forked child, whose signals are not the parent's."""
        previous = _wake(-1)
        if previous >= 0:
            _wake(self._others if previous == self._writer.fileno() else previous)


def _raises(number: int) -> bool:
    return signal.getsignal(number) is _ENDING[signal.Signals(number)][0]


def _exception(number: int) -> BaseException:
    if number == signal.SIGINT:
        return KeyboardInterrupt()
    return SystemExit(128 + number)


def _wake(descriptor: int) -> int:
    """Sets the descriptor to which signals are written; returns the previous descriptor."""
    return signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)


@STATE.value(survives_fork=False)
def step_interrupts() -> Interrupts:
    """Returns the handler for all steps: a signal aborts this rank's control planes."""
    return Interrupts(_abort)


def _abort(reason: str) -> None:
    if not native.load.cache_info().currsize:
        return  # no engine runs, and the main thread may be loading the library
    for running in control_plane.running():
        running.abort(reason)
