"""Checks of a command line's hosts, made before anything is started."""

import re
from pathlib import Path

# As Horovod takes them.
_HOST = re.compile(r"\s*[\w.-]+:([0-9]+)\s*")
_LINE = re.compile(r"\s*[\w.-]+\s+slots=([0-9]+)\s*")


def check_hosts(
    hosts: str | None, hostfile: str | None, num_processes: int | None, elastic: bool = False
) -> None:
    """Rejects hosts that cannot be, and more processes than they have slots.

    Args:
        hosts: of `-H`, such as "one:2,other:2"; None where it was not given.
        hostfile: of `--hostfile`, the path of a file of lines such as "one slots=2"; None where it
            was not given.
        num_processes: of `-np`; None where it was not given.
        elastic: whether hosts may come and go, so that their slots may be too few for now.

    Raises:
        OSError: the file cannot be read.
        ValueError: something is wrong; named.
    """
    if hosts:
        named, slots = f"-H {hosts}", _slots_of_hosts(hosts)
    elif hostfile:
        named, slots = f"hostfile {hostfile!r}", _slots_of_file(Path(hostfile))
    else:
        return
    if num_processes is not None and num_processes > slots and not elastic:
        raise ValueError(f"-np {num_processes} is more than {named} has slots, {slots}")


def _slots_of_hosts(hosts: str) -> int:
    total = 0
    for host in hosts.split(","):
        found = _HOST.fullmatch(host)
        if not found:
            raise ValueError(f"-H must be HOST:SLOTS, separated by commas, got {host!r:.80}")
        total += int(found[1])
    return total


def _slots_of_file(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"hostfile {str(path)!r} is no text") from None
    total = 0
    for number, line in enumerate(lines, start=1):
        found = _LINE.fullmatch(line)
        if not found:
            raise ValueError(
                f"hostfile {str(path)!r}: line {number} must be HOST slots=NUMBER, got {line!r:.80}"
            )
        total += int(found[1])
    return total
