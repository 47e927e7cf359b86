"""`tf-libra run`: starts workers, over horovodrun."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

PROGRAM = "horovodrun"
USAGE = "usage: tf-libra run -np 2 python train.py   (all arguments go to horovodrun)"


def main(arguments: Sequence[str]) -> int:
    """Replaces this process with horovodrun; returns only if that cannot be.

    Args:
        arguments: what stands behind `tf-libra run`.
    """
    if not arguments:
        print(USAGE, file=sys.stderr)
        return 2
    program = find_program()
    if program is None:
        print(
            f"tf-libra: {PROGRAM} is neither beside {sys.executable} nor on PATH; build Horovod"
            " with tools/build_horovod.py of tf-libra's sources",
            file=sys.stderr,
        )
        return 1
    # Workers write into pipes, where Python would hold its output back.
    environment = {"PYTHONUNBUFFERED": "1", **os.environ}
    # horovodrun starts "python" and itself by name: of this environment, if nothing else is said.
    environment["PATH"] = os.pathsep.join([str(program.parent), environment.get("PATH", "")])
    sys.stdout.flush()
    os.execve(program, [str(program), *arguments], environment)


def find_program() -> Path | None:
    """Horovodrun of this Python's environment, else of PATH."""
    beside = Path(sys.executable).parent / PROGRAM
    if beside.exists():
        return beside
    found = shutil.which(PROGRAM)
    return None if found is None else Path(found)
