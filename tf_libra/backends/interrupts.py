"""Ctrl-C while a step waits for other ranks.

Python's handler of a signal runs in the main thread, between two of its instructions, and a step
keeps that thread in C++ for as long as another rank keeps it waiting. But the interpreter also
writes the number of each signal to a descriptor, at once (`signal.set_wakeup_fd`).

A step that is ended may have applied some groups' gradients and not others, so that it first has
the time to end by itself, as one that nobody keeps waiting soon does.
"""

import contextlib
import functools
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from tf_libra.backends import control, library

PATIENCE_SECONDS = 1.0

_Result = TypeVar("_Result")


class Interrupts:
    """Ends what waits in C++ on Ctrl-C, where that is about to raise `KeyboardInterrupt`.

    A script that handles SIGINT in another way, such as to end after this step, is left alone.
    """

    def __init__(
        self, end_wait: Callable[[], None], patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Starts the thread that listens.

        Args:
            end_wait: lets what waits return soon; called in that thread.
            patience_seconds: how long a call may go on after Ctrl-C, to end by itself.
        """
        self._end_wait = end_wait
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._over = threading.Event()  # the call that is under way, if one is; one for each
        self._over.set()
        self._ended = False  # the wait of this call, by Ctrl-C
        self._others = -1  # whose descriptor was set before, if anybody's
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        os.register_at_fork(after_in_child=self._leave)
        threading.Thread(target=self._listen, name="libra interrupts", daemon=True).start()

    def during(self, call: Callable[[], _Result]) -> _Result:
        """Calls, and ends what it waits for on Ctrl-C. Off the main thread it only calls."""
        if threading.current_thread() is not threading.main_thread():
            return call()
        try:
            previous = _wake(self._writer.fileno())
            if previous != self._writer.fileno():  # else Ctrl-C came while the last call was left
                self._others = previous
            self._ended, self._over = False, threading.Event()
            return call()
        except Exception as error:
            if self._ended:
                # Python's KeyboardInterrupt came while TensorFlow made this error, and was lost.
                raise KeyboardInterrupt from error
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
            raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            if signal.SIGINT not in numbers or not raises or over.wait(self._patience_seconds):
                continue
            with self._lock:
                if not over.is_set():
                    self._ended = True
                    self._end_wait()

    def _leave(self) -> None:
        """In a forked child, whose signals are not the parent's."""
        previous = _wake(-1)
        if previous >= 0:
            _wake(self._others if previous == self._writer.fileno() else previous)


def _wake(descriptor: int) -> int:
    """Has signals written there; whose it is cannot be asked whether it wants to be warned."""
    return signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)


@functools.cache
def of_this_process() -> Interrupts:
    """What every step uses: Ctrl-C fails this rank's control, and with it all that waits for it."""
    return Interrupts(_abort)


# A child has no thread that listens, and signals of its own.
os.register_at_fork(after_in_child=of_this_process.cache_clear)


def _abort() -> None:
    if not library.load.cache_info().currsize:
        return  # there is no engine; the main thread may just be loading it, and only one may
    for running in control.running():
        running.abort("KeyboardInterrupt: Ctrl-C")
