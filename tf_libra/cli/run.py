"""`tf-libra run`: starts workers, over Horovod's launcher."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tf_libra.background_jobs.manager import (
    COMMAND_VARIABLE,
    MAX_SLOWDOWN,
    MAX_SLOWDOWN_VARIABLE,
    command_of,
    limit_of,
)
from tf_libra.launcher import env_vars

PROGRAM = "horovodrun"
USAGE = (
    "usage: tf-libra run [--background COMMAND] [--max-slowdown SHARE] -np 2 python train.py"
    "   (all other arguments go to horovodrun)"
)
HELP = f"""{USAGE}

  --background COMMAND      what runs beside training on every rank, on what that leaves
  --max-slowdown SHARE      by how much it may make steps longer ({MAX_SLOWDOWN:g})

In the environment of the workers:
{env_vars.text()}

The exit status is 0 where every worker ended well, 1 where one failed, 2 where the command line is
wrong, and 130 after Ctrl-C. TF_CPP_MIN_LOG_LEVEL is 1 for workers, unless it is set.

What follows is horovodrun's own help.
"""
_NUM_PROCESSES = ("-np", "--num-proc")


def main(arguments: Sequence[str]) -> int:
    """Replaces this process with the launcher; returns only if that cannot be.

    Args:
        arguments: what stands behind `tf-libra run`.
    """
    if not arguments:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        beside, arguments = _beside(arguments)
    except ValueError as error:
        print(f"tf-libra: {error}", file=sys.stderr)
        return 2
    problem = _problem(arguments)
    if problem:
        print(f"tf-libra: {problem}", file=sys.stderr)
        return 2
    if arguments[0] in ("-h", "--help"):
        print(HELP)
    # Workers write into pipes, where Python would hold its output back; and what TensorFlow notes
    # at level info, such as every begin and end of a trace, is no help.
    variables = {"PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "1", **os.environ, **beside}
    sys.stdout.flush()
    if importlib.util.find_spec("horovod") is not None:
        # The launcher starts "python" and itself by name: of this environment, unless PATH says so.
        variables["PATH"] = os.pathsep.join(
            [str(Path(sys.executable).parent), variables.get("PATH", "")]
        )
        command = [sys.executable, "-m", "tf_libra.launcher", *arguments]
        os.execve(sys.executable, command, variables)
    program = find_program()
    if program is None:
        print(
            f"tf-libra: Horovod is not installed beside {sys.executable}, and {PROGRAM} is not on"
            " PATH; build Horovod with tools/build_horovod.py of tf-libra's sources",
            file=sys.stderr,
        )
        return 1
    variables["PATH"] = os.pathsep.join([str(program.parent), variables.get("PATH", "")])
    os.execve(program, [str(program), *arguments], variables)


def _beside(arguments: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
    """Returns the environment variables of a background job, and the arguments without ours.

    Ours come first: what comes later may be the script's.
    """
    environment: dict[str, str] = {}
    while arguments:
        name, equals, value = arguments[0].partition("=")
        if name not in ("--background", "--max-slowdown"):
            break
        taken = 1 if equals else 2
        if len(arguments) < taken:
            raise ValueError(f"{name} must be given a value")
        value = value if equals else arguments[1]
        if name == "--background":
            command_of(name, value)
            environment[COMMAND_VARIABLE] = value
        else:
            limit_of(value)
            environment[MAX_SLOWDOWN_VARIABLE] = value
        arguments = arguments[taken:]
    if MAX_SLOWDOWN_VARIABLE in environment and COMMAND_VARIABLE not in environment:
        raise ValueError("--max-slowdown is of a background job: say which --background")
    if environment and not arguments:
        raise ValueError("there is nothing to run beside --background")
    return environment, arguments


def _problem(arguments: Sequence[str]) -> str:
    """Returns the fault in the number of workers, which horovodrun does not check; "" if none.

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
    """Horovod's launcher of another environment, on PATH."""
    found = shutil.which(PROGRAM)
    return None if found is None else Path(found)
