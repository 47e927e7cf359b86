"""Shows on a terminal what is going on."""

import logging
import shutil
import sys
import threading
import time
from typing import TextIO

from tf_libra.internal import formatting

# What takes no longer needs no progress.
_PATIENCE_SECONDS = 1.0
_REFRESH_SECONDS = 0.25
_CLEAR_LINE = "\r\x1b[2K"


class ProgressLine:
    """A line at the end of a terminal that says what is going on, if it takes over a second.

    It gives way to log messages and goes when there is nothing to wait for. Anywhere but on a
    terminal nothing is written.
    """

    def __init__(self, log: logging.Logger, stream: TextIO | None = None) -> None:
        """Shows nothing yet.

        Args:
            log: whose messages it gives way to; below level info nothing is shown.
            stream: where to write; standard error by default.
        """
        self._stream = sys.stderr if stream is None else stream
        self._log = log
        self._lock = threading.Lock()  # guards what follows
        self._text = ""
        self._since = 0.0
        self._drawn = False
        self._others_write_until = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, text: str, anew: bool = True) -> None:
        """Shows `text` as the current activity, with its clock restarted if the flag is set."""
        if not (self._stream.isatty() and self._log.isEnabledFor(logging.INFO)):
            return
        with self._lock:
            self._text = text
            if anew:
                self._since = time.monotonic()
            if self._thread is None:
                self._ended.clear()
                self._log.addFilter(self._give_way)
                self._thread = threading.Thread(target=self._refresh, daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Stops the line: nothing is going on that anything waits for."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._ended.set()
        if thread is not None:
            thread.join()
            self._log.removeFilter(self._give_way)
            self._clear()

    def _refresh(self) -> None:
        while not self._ended.wait(_REFRESH_SECONDS):
            with self._lock:
                now = time.monotonic()
                seconds = now - self._since
                if seconds < _PATIENCE_SECONDS or now < self._others_write_until:
                    continue
                columns = shutil.get_terminal_size().columns
                line = f"tf_libra: {self._text}, {formatting.time(round(seconds))}"[: columns - 1]
                self._write(_CLEAR_LINE + line)
                self._drawn = True

    def _give_way(self, record: logging.LogRecord) -> bool:
        with self._lock:  # its handlers write after this
            self._others_write_until = time.monotonic() + _REFRESH_SECONDS
        self._clear()
        return True

    def _clear(self) -> None:
        with self._lock:
            if self._drawn:
                self._write(_CLEAR_LINE)
                self._drawn = False

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # a terminal that is gone is no reason to stop
            self._ended.set()
