"""Ctrl-C while a step waits for other ranks.

Python's handler of a signal runs in the main thread, between two of its instructions, and a step
keeps that thread in C++ for as long as another rank keeps it waiting. But the interpreter also
writes the number of each signal to a descriptor, at once (`signal.set_wakeup_fd`).
"""

import contextlib
import functools
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from tf_libra.runtime import engine as engine_lib

_Result = TypeVar("_Result")


class Interrupts:
    """Ends what waits in C++ on Ctrl-C, where that is about to raise `KeyboardInterrupt`.

    A script that handles SIGINT in another way, such as to end after this step, is left alone.
    """

    def __init__(self, end_wait: Callable[[], None]) -> None:
        """Starts the thread that listens.

        Args:
            end_wait: lets what waits return soon; called in that thread.
        """
        self._end_wait = end_wait
        self._lock = threading.Lock()
        self._waiting = False
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
        previous = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        try:
            if previous != self._writer.fileno():  # else Ctrl-C came while the last call was left
                self._others = previous
            self._ended, self._waiting = False, True
            return call()
        except Exception as error:
            if self._ended:
                # Python's KeyboardInterrupt came while TensorFlow made this error, and was lost.
                raise KeyboardInterrupt from error
            raise
        finally:
            signal.set_wakeup_fd(self._others)
            with self._lock:
                self._waiting = False

    def _listen(self) -> None:
        while numbers := self._reader.recv(64):
            if self._others >= 0:
                with contextlib.suppress(OSError):
                    os.write(self._others, numbers)
            # Looked at here, since it takes longer than all that a step does for this.
            raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            with self._lock:
                if self._waiting and raises and signal.SIGINT in numbers:
                    self._ended = True
                    self._end_wait()

    def _leave(self) -> None:
        """In a forked child, whose signals are not the parent's."""
        previous = signal.set_wakeup_fd(-1)
        if previous >= 0:
            signal.set_wakeup_fd(self._others if previous == self._writer.fileno() else previous)


@functools.cache
def of_this_process() -> Interrupts:
    """What every step uses: Ctrl-C fails the running engine, and with it all that waits for it."""
    return Interrupts(_abort)


def _abort() -> None:
    engine = engine_lib.running()
    if engine is not None:
        engine.abort("KeyboardInterrupt: Ctrl-C")
