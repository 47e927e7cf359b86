"""Signal that the kernel sends to a process when its parent ends."""

import ctypes
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
# Loaded here, as a process that has forked should not load libraries.
_PRCTL: Callable[[int, int], int] = ctypes.CDLL(None).prctl


def signal_with_parent(number: int) -> None:
    """Requests a signal at the end of the thread that has started this process.

    It may be called between fork and exec, and lasts beyond exec. A parent that ended before is not
    noticed.
    """
    _PRCTL(_PR_SET_PDEATHSIG, number)
