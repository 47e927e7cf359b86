"""Command runner: flags and positionals, help, files, errors, exit status.

Exit status: 0; 2 for a bad command line or input file; 1 for another failure, for example a full
disk or a missing package.
"""

import errno
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from absl import flags

from tf_libra.internal import validation
from tf_libra.internal.registry import Registry, load_systems

BAD, FAILED = 2, 1
# Failures of the machine rather than of the command line.
_FAILURES = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ENOMEM}
PICTURES = (".svg", ".png")

_T = TypeVar("_T")


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        summary: description for the list of commands.
        define: defines the flags.
        run: runs the command with the flags' values and the positionals.
        positionals: names of positional arguments, for usage.
    """

    summary: str
    define: Callable[[flags.FlagValues], None]
    run: Callable[[flags.FlagValues, list[str]], None]
    positionals: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """Commands of one system: `tf-libra FAMILY COMMAND [flags]`.

    Attributes:
        summary: description for the list of commands.
        main: runs the arguments after the family's name; returns the exit status.
    """

    summary: str
    main: Callable[[list[str]], int]


FAMILIES: Registry[Family] = Registry("command", load_systems)


def version() -> str:
    """Returns the version of the installed package."""
    try:
        return metadata.version("tf-libra")
    except metadata.PackageNotFoundError:
        return "unknown (TF-Libra is not installed)"


def usage(program: str, commands: Mapping[str, str]) -> str:
    """Returns the usage of a program with commands.

    Args:
        program: name of the program, such as "tf-libra burst".
        commands: summaries by name.
    """
    width = max(map(len, commands))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in commands.items()]
    return "\n".join(
        [
            f"usage: {program} COMMAND [flags]",
            "",
            "commands:",
            *lines,
            "",
            f"`{program} COMMAND --help` lists the flags of a command and their defaults.",
        ]
    )


def run_command(program: str, command: Command, arguments: Sequence[str]) -> int:
    """Reads flags and runs a command; returns its exit status.

    Args:
        program: full name, such as "tf-libra burst plan".
        command: the command.
        arguments: command line after the name.
    """
    values = flags.FlagValues()
    flags.DEFINE_bool("help", False, "show this help", short_name="h", flag_values=values)
    called = " ".join(("usage:", program, *command.positionals, "[flags]"))
    try:
        command.define(values)
        rest = values([program, *arguments])[1:]
        if values["help"].value:
            # Headings are names of modules, so they are dropped.
            lines = [line for line in values.get_help().splitlines() if line.startswith(" ")]
            print("\n".join([called, f"\n{command.summary}\n", *lines]))
            return 0
        if len(rest) != len(command.positionals):
            if not command.positionals:
                raise ValueError(f"only flags are allowed, got {' '.join(rest)}")
            wanted = " ".join(command.positionals)
            raise ValueError(f"arguments must be {wanted}, got {len(rest)} arguments")
        if "plot" in values and values["plot"].value:
            check_picture("plot", values["plot"].value)
        # A value too large for a number raises an error with its name, without numpy's warnings.
        with np.errstate(over="ignore", invalid="ignore"):
            command.run(values, rest)
    except flags.Error as error:
        print(f"{program}: {error}\n{called}", file=sys.stderr)
        return BAD
    except ImportError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"{program}: {one_line(error)}", file=sys.stderr)
        return FAILED if error.errno in _FAILURES else BAD
    except ValueError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return BAD
    except MemoryError as error:
        print(f"{program}: out of memory{f': {error}' if str(error) else ''}", file=sys.stderr)
        return FAILED
    return 0


def one_line(error: OSError) -> str:
    """Returns the reason of a failure, with the file name if there is one."""
    if error.filename is None or error.strerror is None:
        return error.strerror or str(error)
    return f"{str(error.filename)!r}: {error.strerror}"


def check_picture(flag: str, path: str) -> None:
    """Rejects a path without the suffix of a picture, before anything is computed."""
    if Path(path).suffix not in PICTURES:
        raise ValueError(f"{flag} must end in {' or '.join(PICTURES)}, got {path!r}")


def flag_value(values: flags.FlagValues, name: str) -> Any:
    """Returns the value of a flag, or its default if the flag was not set."""
    return values[name].value


def read(path: Path, parse: Callable[[str], _T]) -> _T:
    """Reads and parses a document.

    Raises:
        OSError: the file cannot be read.
        ValueError: the document is malformed; the message names the file.
    """
    try:
        return parse(path.read_text())
    except UnicodeDecodeError:
        raise ValueError(f"{str(path)!r} is not a text file") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_flag(
    values: flags.FlagValues, name: str, parse: Callable[[str], _T], in_folder: str = ""
) -> _T:
    """Reads the document that a required flag names.

    Args:
        values: the flags.
        name: name of the flag.
        parse: parses the text.
        in_folder: name of the file if the flag names a folder, such as a log directory.
    """
    return read(flag_path(values, name, in_folder), parse)


def flag_path(values: flags.FlagValues, name: str, in_folder: str = "") -> Path:
    """Returns the file that a flag names; a missing flag is a `ValueError`."""
    text = flag_value(values, name)
    if text is None:
        raise ValueError(f"{name} must be given: --{name} FILE.json")
    path = Path(text)
    return path / in_folder if in_folder and path.is_dir() else path


def write(path: str | None, text: str) -> None:
    """Writes a text to a file, or to stdout without one."""
    if path:
        Path(path).write_text(text)
    else:
        print(text, end="")


def print_json(value: Any) -> None:
    """Prints JSON values."""
    print(json.dumps(value, indent=1))


def integers(field: str, items: list[str] | None, minimum: int = 1) -> list[int]:
    """Returns the integers of a list flag."""
    try:
        numbers = [int(item) for item in items or []]
    except ValueError:
        raise ValueError(f"{field} must be integers separated by commas, got {items}") from None
    return [validation.integer(field, number, minimum, validation.MAX_INT32) for number in numbers]


def define_plot(values: flags.FlagValues, what: str = "the timeline") -> None:
    """Defines the flag of an output picture."""
    flags.DEFINE_string("plot", None, f"output picture of {what}, .svg or .png", flag_values=values)


def run_family(program: str, commands: Mapping[str, Command], arguments: Sequence[str]) -> int:
    """Runs the command that the first argument names; returns its exit status.

    Args:
        program: name of the program, such as "tf-libra burst".
        commands: commands by name.
        arguments: command line after the name.
    """
    text = usage(program, {name: command.summary for name, command in commands.items()})
    name = arguments[0] if arguments else "--help"
    if name in ("--help", "-h", "help"):
        print(text, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else BAD
    if name not in commands:
        print(f"{program}: no command {name!r}\n{text}", file=sys.stderr)
        return BAD
    return run_command(f"{program} {name}", commands[name], arguments[1:])
