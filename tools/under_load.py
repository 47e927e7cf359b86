#!/usr/bin/env python3
"""Runs a command while another program keeps every core busy.

    python tools/under_load.py [--times 3] COMMAND [ARGUMENTS...]

One process per core computes without end; all end with the command. Stops at the first run that
fails, and exits with its status.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

_BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(100_000))\n"


def main(argv: Sequence[str]) -> int:
    """Runs the command the given number of times; returns the last exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=1, help="number of runs")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    flags = parser.parse_args(argv)
    if not flags.command or flags.times < 1:
        parser.error("a command, and at least one run")
    busy = [
        subprocess.Popen([sys.executable, "-c", _BUSY, str(os.getpid())])
        for _ in os.sched_getaffinity(0)
    ]
    try:
        for number in range(flags.times):
            status = subprocess.run(flags.command).returncode
            print(f"under load: run {number + 1} of {flags.times}: status {status}", flush=True)
            if status:
                return status
        return 0
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
