"""Hooks of a worker under `tf-libra run`: its output ends in a few lines.

An error's traceback has the frames of the user's code alone, and a worker that the launcher ends,
as on Ctrl-C, ends like any Python program: what is to be said and written at the end is.
"""

import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType, TracebackType

from tf_libra.launcher import LAUNCHED_VARIABLE, TRACEBACK_VARIABLE

FULL = "full"
_MARK = "Traceback (most recent call last):\n"
_AUTOGRAPH = "__autograph_generated_file"
# Whose frames say nothing to who wrote the script.
_LEFT_OUT = ("tf_libra", "tensorflow", "keras", "tf_keras", "horovod", "absl")


def begin() -> None:
    """Does so from now on, where this process was started by `tf-libra run`."""
    if LAUNCHED_VARIABLE not in os.environ:
        return
    if sys.excepthook is sys.__excepthook__ and os.environ.get(TRACEBACK_VARIABLE) != FULL:
        sys.excepthook = print_shortened
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)


def end(number: int, frame: FrameType | None) -> None:
    """A handler of a signal: ends the process as at the end of the script."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends it immediately
    sys.exit(128 + number)


def print_shortened(
    kind: type[BaseException], error: BaseException, frames: TracebackType | None
) -> None:
    """An exception hook (`sys.excepthook`) that leaves out the frames of libraries."""
    print(shortened(error.with_traceback(frames)), file=sys.stderr, end="", flush=True)


def shortened(error: BaseException) -> str:
    """An error's traceback without the frames of libraries, as text."""
    told = traceback.TracebackException.from_exception(error)
    folders = _folders()
    count = 0
    seen: traceback.TracebackException | None = told
    while seen is not None:
        kept = [frame for frame in seen.stack if not _is_below(frame.filename, folders)]
        count += len(seen.stack) - len(kept)
        seen.stack = traceback.StackSummary.from_list(kept)
        if seen.__cause__ is not None and str(seen.__cause__) == str(seen):
            seen.__cause__ = seen.__cause__.__cause__  # it says the same
        if seen.__cause__ is None and seen.__suppress_context__:
            seen.__context__ = None
        seen = seen.__cause__ or seen.__context__
    parts = list(told.format())
    if count and _MARK in parts:  # a message may quote another traceback
        last = len(parts) - parts[::-1].index(_MARK)
        shown = f"{TRACEBACK_VARIABLE}={FULL} shows them"
        parts.insert(last, f"  ({count} frames of libraries are left out; {shown})\n")
    return "".join(parts)


def _folders() -> list[Path]:
    found = []
    for name in _LEFT_OUT:
        path = getattr(sys.modules.get(name), "__file__", None)
        if path:
            found.append(Path(path).resolve().parent)
    return found


def _is_below(filename: str, folders: list[Path]) -> bool:
    # Compiled of a string, as dataclasses are; or what AutoGraph made of a function.
    if filename.startswith("<frozen") or filename == "<string>" or _AUTOGRAPH in filename:
        return True
    path = Path(filename)
    return any(folder in path.parents for folder in folders)
