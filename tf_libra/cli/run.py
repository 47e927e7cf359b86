"""`tf-libra run`: starts ranks on this host, or with Horovod's launcher for scripts of Horovod."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tf_libra.internal.registry import Registry, load_systems
from tf_libra.launcher import SELECT_VARIABLE, env_vars, local_job
from tf_libra.launcher.script_imports import find_horovod_import

_NUM_PROCESSES = ("-np", "--num-proc")
_HOROVOD, _LOCAL = "--horovod", "--no-horovod"
_HELP = ("-h", "--help")
# Options of Horovod's launcher that name hosts.
_HOSTS = ("-H", "--hosts", "--hostfile", "-hostfile", "--host-discovery-script")
NO_HOROVOD = (
    "Horovod is not installed for {python}: install the extra tf-libra[horovod], or build Horovod"
    " for a current TensorFlow with tools/build_horovod.py of tf-libra's sources"
)


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


@dataclass(frozen=True)
class CommandLine:
    """Command line after `tf-libra run`.

    Attributes:
        num_ranks: value of -np; None if it is not passed before another option.
        is_horovod: whether --horovod (True) or --no-horovod (False) is passed; None for neither.
        is_help: whether the help is requested.
        variables: environment variables that own flags set.
        rest: first option of another program, or the command, and all that follows.
    """

    num_ranks: int | None = None
    is_horovod: bool | None = None
    is_help: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    rest: Sequence[str] = ()


def usage() -> str:
    """Returns the usage line."""
    flags = "".join(f"[{name} {flag.value}] " for name, flag in FLAGS.items())
    return f"usage: tf-libra run [{_HOROVOD} | {_LOCAL}] {flags}-np 2 python train.py"


def help_text() -> str:
    """Returns the help, without that of Horovod's launcher."""
    flags = {
        "-np N": "number of ranks, all on this host",
        _HOROVOD: "start ranks with Horovod's launcher, which has further options, such as -H",
        _LOCAL: "start ranks without Horovod",
    }
    flags |= {f"{name} {flag.value}": flag.help for name, flag in FLAGS.items()}
    listed = "".join(f"  {name:<24}  {text}\n" for name, text in flags.items())
    return f"""{usage()}

{listed}
Without {_HOROVOD} or {_LOCAL}, ranks are those of Horovod if the script, or a module of its folder
that it imports, imports Horovod. Other launchers: docs/launchers.md.

In the environment of the workers:
{env_vars.text()}

The exit status is 0 if every worker succeeded, 1 if one failed, 2 for a bad command line, and 130
after Ctrl-C. TF_CPP_MIN_LOG_LEVEL is 1 for workers, unless it is set.
"""


def main(arguments: Sequence[str]) -> int:
    """Starts the ranks; returns the exit status.

    With Horovod, the launcher replaces this process.

    Args:
        arguments: command line after `tf-libra run`.
    """
    if not arguments:
        print(usage(), file=sys.stderr)
        return 2
    try:
        command_line = parse(arguments)
        if command_line.is_help:
            return _help()
        is_horovod, reason = _decide(command_line)
        # Workers write into pipes, where Python buffers its output. TensorFlow messages at level
        # INFO, such as every begin and end of a trace, would hide those of the script.
        variables = {"PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "1", **os.environ}
        variables |= command_line.variables
        # Workers are started by name, such as "python", which must be that of this environment.
        variables["PATH"] = os.pathsep.join(
            [str(Path(sys.executable).parent), variables.get("PATH", os.defpath)]
        )
        if not is_horovod:
            num_ranks, command = _local_command(command_line)
            _check_program(command, variables["PATH"])
    except ValueError as error:
        print(f"tf-libra run: {error}", file=sys.stderr)
        return 2
    if not is_horovod:
        print(f"tf-libra run: {num_ranks} ranks on this host ({reason})", file=sys.stderr)
        return local_job.run(command, num_ranks, variables)
    if importlib.util.find_spec("horovod") is None:
        missing = NO_HOROVOD.format(python=sys.executable)
        print(f"tf-libra run: {missing} ({reason})", file=sys.stderr)
        return 1
    if command_line.rest and not command_line.rest[0].startswith("-"):
        print(f"tf-libra run: ranks of Horovod ({reason})", file=sys.stderr)
    _replace_by_horovod(command_line, variables)
    raise AssertionError("unreachable")


def parse(arguments: Sequence[str]) -> CommandLine:
    """Returns the command line's parts.

    Only leading arguments are parsed: a later one may be the script's.

    Raises:
        ValueError: a flag has no value or an invalid one.
    """
    num_ranks: int | None = None
    is_horovod: bool | None = None
    found: dict[str, str] = {}
    while arguments:
        name, equals, value = arguments[0].partition("=")
        if name in _HELP:
            return CommandLine(is_help=True)
        if arguments[0] in (_HOROVOD, _LOCAL):
            is_horovod, arguments = arguments[0] == _HOROVOD, arguments[1:]
            continue
        if name == "--":  # ends the options, as for other programs
            arguments = arguments[1:]
            break
        if name not in FLAGS and name not in _NUM_PROCESSES:
            break
        if not equals:
            value = arguments[1] if len(arguments) > 1 else ""
        if name in _NUM_PROCESSES:
            num_ranks = _number(name, value)
        elif not equals and len(arguments) < 2:
            raise ValueError(f"{name} must have a value")
        else:
            found[name] = value
        arguments = arguments[1 if equals else 2 :]
    variables = _variables(found)
    if found and not arguments:
        raise ValueError(f"a command is required after {', '.join(found)}")
    _check_num_processes(arguments if num_ranks is None else ())
    return CommandLine(num_ranks, is_horovod, False, variables, arguments)


def _variables(found: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that flags of optional systems set."""
    variables = {}
    for name, value in found.items():
        flag = FLAGS[name]
        flag.check(name, value)
        variables[flag.variable] = value
        if flag.needs and flag.needs not in found:
            raise ValueError(f"{name} must be given with {flag.needs}")
    return variables


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal() and int(value) > 0):
        raise ValueError(f"{name} must be a whole number of workers, at least 1, got {value!r}")
    return int(value)


def _check_num_processes(arguments: Sequence[str]) -> None:
    """Checks the number of workers among options of Horovod's launcher, which does not check it.

    Only the first number counts: what follows it may be the script's own.
    """
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in _NUM_PROCESSES:
            _number(name, value if equals else "".join(arguments[index + 1 : index + 2]))
            return


def _decide(command_line: CommandLine) -> tuple[bool, str]:
    """Returns whether Horovod's launcher starts the ranks, and the reason.

    Raises:
        ValueError: TF_LIBRA_LAUNCHER selects another launcher.
    """
    if command_line.is_horovod is not None:
        return command_line.is_horovod, _HOROVOD if command_line.is_horovod else _LOCAL
    selected = os.environ.get(SELECT_VARIABLE, "") or "auto"
    if selected not in ("auto", "torchrun", "horovod"):
        raise ValueError(
            f"{SELECT_VARIABLE} must be auto, torchrun or horovod under tf-libra run,"
            f" got {selected!r}"
        )
    if selected != "auto":
        return selected == "horovod", f"{SELECT_VARIABLE}={selected}"
    found = find_horovod_import(command_line.rest)
    if found is None:
        return False, "the script does not import Horovod"
    location = f"{found.file.name}, line {found.line}"
    if found.is_optional and importlib.util.find_spec("horovod") is None:
        return False, f"Horovod is not installed, and optional in {location}"
    return True, f"{location} imports it; {_LOCAL} starts ranks without it"


def _local_command(command_line: CommandLine) -> tuple[int, Sequence[str]]:
    """Returns number of ranks and command of a job without Horovod.

    Raises:
        ValueError: one of them is missing, or an option is Horovod's.
    """
    option = command_line.rest[0].partition("=")[0] if command_line.rest else ""
    if option in _HOSTS:
        raise ValueError(
            f"{option}: ranks on other hosts need Horovod's launcher ({_HOROVOD}, before all other"
            " options) and a script of Horovod, or one of the launchers of docs/launchers.md"
        )
    if option.startswith("-"):
        raise ValueError(
            f"unknown option {option}; options of Horovod's launcher follow {_HOROVOD}. {usage()}"
        )
    if not command_line.rest:
        raise ValueError("a command is required: tf-libra run -np 2 python train.py")
    if command_line.num_ranks is None:
        raise ValueError("-np is required: tf-libra run -np 2 python train.py")
    return command_line.num_ranks, command_line.rest


def _check_program(command: Sequence[str], path: str) -> None:
    """Checks that a command begins with a program.

    Args:
        command: program and arguments of each rank.
        path: folders in which programs are searched.

    Raises:
        ValueError: no program has this name.
    """
    if shutil.which(command[0], path=path) is not None:
        return
    if not command[0].endswith(".py"):
        raise ValueError(f"program {command[0]!r} was not found, or is not executable")
    shown = " ".join(["python", *command])
    raise ValueError(f"{command[0]!r} is no program; Python executes scripts: {shown}")


def _horovod_command(command_line: CommandLine) -> list[str]:
    number = [] if command_line.num_ranks is None else ["-np", str(command_line.num_ranks)]
    return [sys.executable, "-m", "tf_libra.launcher", *number, *command_line.rest]


def _replace_by_horovod(command_line: CommandLine, variables: Mapping[str, str]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, _horovod_command(command_line), dict(variables))


def _help() -> int:
    print(help_text())
    if importlib.util.find_spec("horovod") is not None:
        print("Help of Horovod's launcher, for --horovod:\n")
        _replace_by_horovod(CommandLine(rest=["--help"]), os.environ)
    return 0
