"""Families of commands: `tf-libra FAMILY COMMAND [flags]`."""

import sys
from collections.abc import Mapping, Sequence

from tf_libra.cli.command import BAD, Command, carry_out, usage


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
