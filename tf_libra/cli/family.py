"""What the commands of a family have in common: `tf-libra FAMILY COMMAND [flags]`."""

import sys
from collections.abc import Callable, Sequence

from absl import flags


def carry_out(
    program: str,
    values: flags.FlagValues,
    arguments: Sequence[str],
    command: Callable[[flags.FlagValues], None],
) -> int:
    """Reads flags, of which `values` has all but `help`, and runs a command; returns its status.

    Args:
        program: what was called, such as "tf-libra burst plan".
        values: the flags that the command knows.
        arguments: what was given.
        command: is run unless help was asked for.
    """
    flags.DEFINE_bool("help", False, "show this", short_name="h", flag_values=values)
    try:
        rest = values([program, *arguments])[1:]
        if values["help"].value:
            # Without the headings, which are the names of modules.
            lines = [line for line in values.get_help().splitlines() if line.startswith(" ")]
            print("\n".join([f"usage: {program} [flags]", *lines]))
            return 0
        if rest:
            raise ValueError(f"no arguments are taken beside the flags, got {' '.join(rest)}")
        command(values)
    except flags.Error as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except (ValueError, OSError, ImportError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    return 0
