"""Common parts of all commands: flags and positionals, help, files, errors, exit status.

Exit status: 0; 2 if the command line or a file that it names is bad; 1 if the request is right and
still fails, for example because a disk is full or a package is missing.
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

BAD, FAILED = 2, 1
# The machine's trouble, not that of who has named a file.
_FAILURES = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ENOMEM}
PICTURES = (".svg", ".png")

_T = TypeVar("_T")


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        summary: what it does, for the list of commands.
        define: defines its flags.
        run: carries it out, with the flags' values and the positionals.
        positionals: the arguments in addition to the flags, each as usage shows it.
    """

    summary: str
    define: Callable[[flags.FlagValues], None]
    run: Callable[[flags.FlagValues, list[str]], None]
    positionals: tuple[str, ...] = ()


def version() -> str:
    """The version of the installed package."""
    try:
        return metadata.version("tf-libra")
    except metadata.PackageNotFoundError:
        return "unknown, as TF-Libra is not installed"


def usage(program: str, commands: Mapping[str, str]) -> str:
    """Returns the usage of a program with commands.

    Args:
        program: such as "tf-libra burst".
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
            f"`{program} COMMAND --help` lists the flags of a command, with their defaults.",
        ]
    )


def carry_out(program: str, command: Command, arguments: Sequence[str]) -> int:
    """Reads flags and runs a command; returns its exit status.

    Args:
        program: what was called, such as "tf-libra burst plan".
        command: what it is.
        arguments: what was given.
    """
    values = flags.FlagValues()
    flags.DEFINE_bool("help", False, "show this", short_name="h", flag_values=values)
    called = " ".join(("usage:", program, *command.positionals, "[flags]"))
    try:
        command.define(values)
        rest = values([program, *arguments])[1:]
        if values["help"].value:
            # Without the headings, which are the names of modules.
            lines = [line for line in values.get_help().splitlines() if line.startswith(" ")]
            print("\n".join([called, f"\n{command.summary}\n", *lines]))
            return 0
        if len(rest) != len(command.positionals):
            if not command.positionals:
                raise ValueError(f"no arguments are taken beside the flags, got {' '.join(rest)}")
            wanted = " ".join(command.positionals)
            raise ValueError(f"takes {wanted} beside the flags, got {len(rest)} arguments")
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
        print(f"{program}: too little memory{f': {error}' if str(error) else ''}", file=sys.stderr)
        return FAILED
    return 0


def one_line(error: OSError) -> str:
    """Returns what has failed, and for which file if that is known."""
    if error.filename is None or error.strerror is None:
        return error.strerror or str(error)
    return f"{str(error.filename)!r}: {error.strerror}"


def check_picture(flag: str, path: str) -> None:
    """Rejects a path that is no picture's, before anything is computed."""
    if Path(path).suffix not in PICTURES:
        raise ValueError(f"{flag} must end in {' or '.join(PICTURES)}, got {path!r}")


def given(values: flags.FlagValues, name: str) -> Any:
    """Returns the value of a flag, or its default if the flag was not set."""
    return values[name].value


def read(path: Path, parse: Callable[[str], _T]) -> _T:
    """Reads a document.

    Raises:
        OSError: it cannot be read.
        ValueError: it is none; names the file.
    """
    try:
        return parse(path.read_text())
    except UnicodeDecodeError:
        raise ValueError(f"{str(path)!r} is no text") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_flag(
    values: flags.FlagValues, name: str, parse: Callable[[str], _T], in_folder: str = ""
) -> _T:
    """Reads the document that a flag names, which has to be given.

    Args:
        values: the flags.
        name: of the flag.
        parse: reads the text.
        in_folder: the file that is meant where a folder is named, such as a log directory.
    """
    return read(path_of(values, name, in_folder), parse)


def path_of(values: flags.FlagValues, name: str, in_folder: str = "") -> Path:
    """The file that a flag means; `ValueError` where it is not given."""
    text = given(values, name)
    if text is None:
        raise ValueError(f"{name} must be given: --{name} FILE.json")
    path = Path(text)
    return path / in_folder if in_folder and path.is_dir() else path


def write(path: str | None, text: str) -> None:
    """Writes a text to a file; to stdout if none is named."""
    if path:
        Path(path).write_text(text)
    else:
        print(text, end="")


def print_json(value: Any) -> None:
    """Prints JSON values."""
    print(json.dumps(value, indent=1))


def integers(field: str, items: list[str] | None, minimum: int = 1) -> list[int]:
    """Numbers of a flag that holds a list."""
    try:
        numbers = [int(item) for item in items or []]
    except ValueError:
        raise ValueError(f"{field} must be integers separated by commas, got {items}") from None
    return [validation.integer(field, number, minimum, validation.MAX_INT32) for number in numbers]


def define_plot(values: flags.FlagValues, what: str = "the timeline") -> None:
    """The flag of a picture."""
    flags.DEFINE_string(
        "plot", None, f"draw {what} as this picture, .svg or .png", flag_values=values
    )


def run_family(program: str, commands: Mapping[str, Command], arguments: Sequence[str]) -> int:
    """Runs the command that the first argument names; returns its exit status.

    Args:
        program: such as "tf-libra burst".
        commands: by name.
        arguments: what stands behind `program`.
    """
    told = usage(program, {name: command.summary for name, command in commands.items()})
    name = arguments[0] if arguments else "--help"
    if name in ("--help", "-h", "help"):
        print(told, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else BAD
    if name not in commands:
        print(f"{program}: no command {name!r}\n{told}", file=sys.stderr)
        return BAD
    return carry_out(f"{program} {name}", commands[name], arguments[1:])
