"""Tells the user what is going on: rank 0 speaks, the others only warn."""

import logging
import os
import shutil
import sys
import threading
import time
from typing import TextIO

LEVEL_VARIABLE = "TF_LIBRA_LOG_LEVEL"
# On the logger itself: the level that was set here. Another one is the user's, and stays; the rank
# of a process may change in an elastic job.
_OWN_LEVEL = "_tf_libra_level"
# What takes no longer needs no progress.
_PATIENCE_SECONDS = 1.0
_REFRESH_SECONDS = 0.25
_CLEAR_LINE = "\r\x1b[2K"


def logger(rank: int) -> logging.Logger:
    """The project's logger, at the level that TF_LIBRA_LOG_LEVEL names (default: info).

    Where the application has set up logging for "tf_libra" or at the root, as absl's does, that is
    used, and so is a level that it has set for "tf_libra", or one above warning at the root.
    """
    log = logging.getLogger("tf_libra")
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("tf_libra: %(message)s"))
        log.addHandler(handler)
        log.propagate = False
    if log.level in (logging.NOTSET, getattr(log, _OWN_LEVEL, logging.NOTSET)):
        level = _wanted_level()
        log.setLevel(level if rank == 0 else max(level, logging.WARNING))
        setattr(log, _OWN_LEVEL, log.level)
    return log


def _wanted_level() -> int:
    named = _level(os.environ.get(LEVEL_VARIABLE, ""))
    if named is not None:
        return named
    # Warning is what the root has where nobody has said anything.
    root = logging.getLogger().level
    return root if root > logging.WARNING else logging.INFO


def warn_of_unknown_level(log: logging.Logger) -> None:
    """Says so where TF_LIBRA_LOG_LEVEL names no level."""
    wanted = os.environ.get(LEVEL_VARIABLE)
    if wanted is not None and _level(wanted) is None:
        log.warning(
            "%s must be debug, info, warning, error or critical, got %r; info is taken",
            LEVEL_VARIABLE,
            wanted,
        )


def _level(name: str) -> int | None:
    return logging.getLevelNamesMapping().get(name.upper()) or None


class Progress:
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
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, text: str, anew: bool = True) -> None:
        """From now on `text` is what is going on; `anew` starts its clock again."""
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
        """Nothing is going on that would be waited for."""
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
                seconds = time.monotonic() - self._since
                if seconds < _PATIENCE_SECONDS:
                    continue
                columns = shutil.get_terminal_size().columns
                line = f"tf_libra: {self._text}, {seconds:.0f} s"[: columns - 1]
                self._write(_CLEAR_LINE + line)
                self._drawn = True

    def _give_way(self, record: logging.LogRecord) -> bool:
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
