"""Progress line at the end of a terminal."""

import logging
import shutil
import sys
import threading
import time
from typing import TextIO

from tf_libra.internal import formatting

# Shorter activities show no progress.
_DELAY_SECONDS = 1.0
_REFRESH_SECONDS = 0.25
_CLEAR_LINE = "\r\x1b[2K"


class ProgressLine:
    """Line at the end of a terminal with the current activity, if that takes over a second.

    Log messages replace the line. Streams other than terminals receive nothing.
    """

    def __init__(self, log: logging.Logger, stream: TextIO | None = None) -> None:
        """Creates an empty line.

        Args:
            log: logger whose messages replace the line; without level INFO, no line is shown.
            stream: output stream; standard error by default.
        """
        self._stream = sys.stderr if stream is None else stream
        self._log = log
        self._lock = threading.Lock()  # guards the attributes below
        self._text = ""
        self._since = 0.0
        self._is_drawn = False
        self._log_writes_until = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, text: str, restart: bool = True) -> None:
        """Shows `text` as the current activity, and restarts its clock if `restart` is set."""
        if not (self._stream.isatty() and self._log.isEnabledFor(logging.INFO)):
            return
        with self._lock:
            self._text = text
            if restart:
                self._since = time.monotonic()
            if self._thread is None:
                self._ended.clear()
                self._log.addFilter(self._yield_to_log)
                self._thread = threading.Thread(target=self._refresh, daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Removes the line, as the activity is over."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._ended.set()
        if thread is not None:
            thread.join()
            self._log.removeFilter(self._yield_to_log)
            self._clear()

    def _refresh(self) -> None:
        while not self._ended.wait(_REFRESH_SECONDS):
            with self._lock:
                now = time.monotonic()
                seconds = now - self._since
                if seconds < _DELAY_SECONDS or now < self._log_writes_until:
                    continue
                columns = shutil.get_terminal_size().columns
                line = f"tf_libra: {self._text}, {formatting.time(round(seconds))}"[: columns - 1]
                self._write(_CLEAR_LINE + line)
                self._is_drawn = True

    def _yield_to_log(self, record: logging.LogRecord) -> bool:
        with self._lock:  # the log's handlers write after this filter
            self._log_writes_until = time.monotonic() + _REFRESH_SECONDS
        self._clear()
        return True

    def _clear(self) -> None:
        with self._lock:
            if self._is_drawn:
                self._write(_CLEAR_LINE)
                self._is_drawn = False

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # training goes on without its terminal
            self._ended.set()
