"""Ctrl-C, or what a launcher makes of it, while a step waits for other ranks.

`tf-libra run` passes Ctrl-C on to its workers as SIGTERM, and kills those that are still there some
seconds later. Python's handler of a signal runs in the main thread, between two of its
instructions, and a step keeps that thread in C++ for as long as another rank keeps it waiting. But
the interpreter also writes the number of each signal to a descriptor, immediately
(`signal.set_wakeup_fd`).

A step that is ended may have applied some groups' gradients and not others, so that it first has
the time to end by itself, as one that waits for no rank soon does. Computation cannot be ended
at all: where a step goes on with it for as long as the launcher has patience, what is to be said at
the end is said meanwhile.
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
# After that; Horovod's launcher kills five seconds after the signal.
_LAST_SECONDS = 2.5
# Handlers that end the process by an exception, and in words, for the other ranks, why.
_ENDING = {
    signal.SIGINT: (signal.default_int_handler, "KeyboardInterrupt: Ctrl-C"),
    signal.SIGTERM: (worker_hooks.end, "it was told to end (SIGTERM)"),
}

_Result = TypeVar("_Result")


class Interrupts:
    """Ends what waits in C++ on Ctrl-C, where that is about to raise `KeyboardInterrupt`.

    And on SIGTERM in a worker of `tf-libra run`, where that is about to end the script. A script
    that handles these signals in another way, such as to end after this step, is left alone.

    Attributes:
        came: the signal by which the call under way is to end; None without one.
    """

    def __init__(
        self,
        end_wait: Callable[[str], None],
        patience_seconds: float = PATIENCE_SECONDS,
        last_seconds: float = _LAST_SECONDS,
    ) -> None:
        """Starts the thread that listens.

        Args:
            end_wait: lets what waits return soon, for a reason in words; called in that thread.
            patience_seconds: how long a call may go on after the signal, to end by itself.
            last_seconds: after its wait was ended, how long it may go on before what is to be said
                at the end is said; see `at_the_end`.
        """
        self._end_wait = end_wait
        self._patience_seconds = patience_seconds
        self._last_seconds = last_seconds
        self._last_words: set[Callable[[], None]] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()  # the call that is under way, if one is; one for each
        self._over.set()
        self.came: int | None = None
        self._others = -1  # the descriptor that was set before, if any
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        os.register_at_fork(after_in_child=self._leave)
        threading.Thread(target=self._listen, name="libra interrupts", daemon=True).start()

    def at_the_end(self, speak: Callable[[], None]) -> None:
        """Calls `speak` if a worker that got the signal to end (SIGTERM) is about to be killed.

        That is in a thread of its own, while the main thread is in a call.
        """
        self._last_words.add(speak)

    def not_at_the_end(self, speak: Callable[[], None]) -> None:
        """Removes `speak`, whose work is done."""
        self._last_words.discard(speak)

    def during(self, call: Callable[[], _Result]) -> _Result:
        """Calls, and ends what it waits for on Ctrl-C. Off the main thread it only calls."""
        if threading.current_thread() is not threading.main_thread():
            return call()
        try:
            previous = _wake(self._writer.fileno())
            if previous != self._writer.fileno():  # else Ctrl-C came while the last call was left
                self._others = previous
            self.came, self._over = None, threading.Event()
            return call()
        except Exception as error:
            if self.came is not None:
                # What Python's handler raises came while TensorFlow made this error, and was lost.
                # Or the rank that was waited for has got the signal first.
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
            # Looked at here, since it takes longer than all that a step does for this.
            ending = [n for n in numbers if n in _ENDING and _raises(n)]
            if not ending or over.is_set():
                continue
            self.came = ending[0]
            if over.wait(self._patience_seconds):
                continue
            with self._lock:
                if not over.is_set():
                    self._end_wait(_ENDING[signal.Signals(ending[0])][1])
            if ending[0] == signal.SIGTERM and not over.wait(self._last_seconds):
                with self._lock:
                    if not over.is_set():
                        for speak in tuple(self._last_words):
                            speak()

    def _leave(self) -> None:
        """In a forked child, whose signals are not the parent's."""
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
    """Has signals written there, without warnings: whether its owner wants them is unknown."""
    return signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)


@STATE.value(survives_fork=False)
def step_interrupts() -> Interrupts:
    """Returns the handler of all steps: Ctrl-C fails this rank's control and all that waits."""
    return Interrupts(_abort)


def _abort(reason: str) -> None:
    if not native.load.cache_info().currsize:
        return  # there is no engine; the main thread may just be loading it, and only one may
    for running in control_plane.running():
        running.abort(reason)
