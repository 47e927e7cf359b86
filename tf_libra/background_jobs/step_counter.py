"""Step counter that a background job shares with the process that started it.

The environment variable TF_LIBRA_BACKGROUND_COUNT names a file with the number of steps so far, a
little-endian integer of eight bytes.

    python -m tf_libra.background_jobs.step_counter MODULE:FUNCTION

calls a function until it returns False or raises, and counts its calls.
"""

import contextlib
import importlib
import mmap
import os
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

COUNT_VARIABLE = "TF_LIBRA_BACKGROUND_COUNT"
_FORMAT = struct.Struct("<Q")


class StepCount:
    """Reader of a job's number of steps."""

    def __init__(self) -> None:
        """Create the file with zero steps."""
        file, name = tempfile.mkstemp(prefix="tf-libra-background-")
        with os.fdopen(file, "wb") as opened:
            opened.write(_FORMAT.pack(0))
        self.path = Path(name)
        self._last = 0

    def read(self) -> int | None:
        """Return the number of steps; None before the first step."""
        with contextlib.suppress(OSError, struct.error):
            (self._last,) = _FORMAT.unpack(self.path.read_bytes())
        return self._last or None

    def end(self) -> None:
        """Remove the file and keep the last number."""
        self.read()
        self.path.unlink(missing_ok=True)


def counter() -> Callable[[], None]:
    """Return a function for the job to call after each step; a no-op without a reader."""
    path = os.environ.get(COUNT_VARIABLE)
    try:
        with open(path or os.devnull, "r+b") as file:
            shared = mmap.mmap(file.fileno(), _FORMAT.size)
    except (OSError, ValueError):
        return lambda: None
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        _FORMAT.pack_into(shared, 0, count)

    return step


def main() -> None:
    """Calls the function of the command line repeatedly."""
    module, _, name = sys.argv[1].partition(":")
    function = getattr(importlib.import_module(module), name)
    step = counter()
    while function() is not False:
        step()


if __name__ == "__main__":
    main()
