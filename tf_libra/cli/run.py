"""`tf-libra run`: starts workers, over horovodrun."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

PROGRAM = "horovodrun"
USAGE = "usage: tf-libra run -np 2 python train.py   (all arguments go to horovodrun)"
HELP = f"""{USAGE}

In the environment of the workers:
  TF_LIBRA_LOG_LEVEL        debug, info, warning or error; what rank 0 says
  TF_LIBRA_TIMEOUT_SECONDS  how long to wait for another rank at most
  TF_LIBRA_INTERFACE        the network interface between hosts, such as eth0
  TF_LIBRA_PORTS            where ranks may listen for each other, such as 20000-20063

What follows is horovodrun's own help.
"""
_NUM_PROCESSES = ("-np", "--num-proc")


def main(arguments: Sequence[str]) -> int:
    """Replaces this process with horovodrun; returns only if that cannot be.

    Args:
        arguments: what stands behind `tf-libra run`.
    """
    if not arguments:
        print(USAGE, file=sys.stderr)
        return 2
    problem = _problem(arguments)
    if problem:
        print(f"tf-libra: {problem}", file=sys.stderr)
        return 2
    if arguments[0] in ("-h", "--help"):
        print(HELP)
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


def _problem(arguments: Sequence[str]) -> str:
    """What is wrong with the number of workers, which horovodrun takes as it is; empty if nothing.

    Only the first number counts: what follows it may be the script's own.
    """
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name not in _NUM_PROCESSES:
            continue
        if not equals:
            value = arguments[index + 1] if index + 1 < len(arguments) else ""
        if not (value.isascii() and value.isdecimal() and int(value) > 0):
            return f"{name} must be a whole number of workers, at least 1, got {value!r}"
        return ""
    return ""


def find_program() -> Path | None:
    """Horovodrun of this Python's environment, else of PATH."""
    beside = Path(sys.executable).parent / PROGRAM
    if beside.exists():
        return beside
    found = shutil.which(PROGRAM)
    return None if found is None else Path(found)
