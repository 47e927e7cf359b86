"""Becomes a command that runs only on processor time that nobody else wants.

    python -m tf_libra.multiplexing.idle PARENT DESCRIPTOR COMMAND [ARGUMENTS...]

`SCHED_IDLE` holds for all threads and processes that the command starts. It ends when the thread
that has started it does, of the process PARENT. DESCRIPTOR is closed when the command begins.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Becomes the command; returns only if that cannot be."""
    parent, begins, *command = sys.argv[1:]
    os.set_inheritable(int(begins), False)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it has ended before it could be asked
        return 1
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"tf-libra: cannot run {command[0]!r}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main())
