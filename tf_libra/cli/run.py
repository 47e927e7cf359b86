"""`tf-libra run`: starts workers with Horovod's launcher."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_libra.internal.registry import Registry
from tf_libra.internal.systems import load_systems
from tf_libra.launcher import env_vars

PROGRAM = "horovodrun"
_NUM_PROCESSES = ("-np", "--num-proc")


@dataclass(frozen=True)
class RunFlag:
    """Flag of `tf-libra run` itself, which sets an environment variable of the workers.

    Attributes:
        value: placeholder of its value in the help.
        help: one line.
        variable: environment variable.
        check: called with the flag's name and value; raises `ValueError`.
        needs: name of a flag without which this one has no effect; empty for none.
    """

    value: str
    help: str
    variable: str
    check: Callable[[str, str], object]
    needs: str = ""


FLAGS: Registry[RunFlag] = Registry("flag", load_systems)


def usage() -> str:
    """Returns the usage line."""
    flags = "".join(f"[{name} {flag.value}] " for name, flag in FLAGS.items())
    return (
        f"usage: tf-libra run {flags}-np 2 python train.py   (all other arguments go to horovodrun)"
    )


def help_text() -> str:
    """Returns the help that precedes horovodrun's own."""
    flags = "".join(
        f"  {f'{name} {flag.value}':<24}  {flag.help}\n" for name, flag in FLAGS.items()
    )
    return f"""{usage()}

{flags}
In the environment of the workers:
{env_vars.text()}

The exit status is 0 if every worker succeeded, 1 if one failed, 2 for a bad command line, and 130
after Ctrl-C. TF_CPP_MIN_LOG_LEVEL is 1 for workers, unless it is set.

What follows is horovodrun's own help.
"""


def main(arguments: Sequence[str]) -> int:
    """Replaces this process with the launcher; returns an exit status only on failure.

    Args:
        arguments: command line after `tf-libra run`.
    """
    if not arguments:
        print(usage(), file=sys.stderr)
        return 2
    try:
        own, arguments = _parse_flags(arguments)
    except ValueError as error:
        print(f"tf-libra: {error}", file=sys.stderr)
        return 2
    problem = _problem(arguments)
    if problem:
        print(f"tf-libra: {problem}", file=sys.stderr)
        return 2
    if arguments[0] in ("-h", "--help"):
        print(help_text())
    # Workers write into pipes, where Python buffers its output. TensorFlow messages at level INFO,
    # such as every begin and end of a trace, would hide those of the script.
    variables = {"PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "1", **os.environ, **own}
    sys.stdout.flush()
    if importlib.util.find_spec("horovod") is not None:
        # The launcher starts "python" and itself by name, which must be those of this environment.
        variables["PATH"] = os.pathsep.join(
            [str(Path(sys.executable).parent), variables.get("PATH", "")]
        )
        command = [sys.executable, "-m", "tf_libra.launcher", *arguments]
        os.execve(sys.executable, command, variables)
    program = find_program()
    if program is None:
        print(
            f"tf-libra: Horovod is not installed for {sys.executable}, and {PROGRAM} is not on"
            " PATH; build Horovod with tools/build_horovod.py of tf-libra's sources",
            file=sys.stderr,
        )
        return 1
    variables["PATH"] = os.pathsep.join([str(program.parent), variables.get("PATH", "")])
    os.execve(program, [str(program), *arguments], variables)


def _parse_flags(arguments: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
    """Returns the environment variables that our flags set, and the arguments after them.

    Only leading arguments are parsed: a later one may be the script's.
    """
    found: dict[str, str] = {}
    environment: dict[str, str] = {}
    while arguments:
        name, equals, value = arguments[0].partition("=")
        if name not in FLAGS:
            break
        count = 1 if equals else 2
        if len(arguments) < count:
            raise ValueError(f"{name} must have a value")
        found[name] = value if equals else arguments[1]
        arguments = arguments[count:]
    for name, value in found.items():
        flag = FLAGS[name]
        flag.check(name, value)
        environment[flag.variable] = value
        if flag.needs and flag.needs not in found:
            raise ValueError(f"{name} must be given with {flag.needs}")
    if environment and not arguments:
        raise ValueError(f"a command is required after {', '.join(found)}")
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
    """Returns Horovod's launcher of another environment, on PATH; None without one."""
    found = shutil.which(PROGRAM)
    return None if found is None else Path(found)
