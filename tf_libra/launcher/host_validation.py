"""Validation of the command line's hosts, before any worker is started."""

import re
from pathlib import Path

# Horovod's formats.
_HOST = re.compile(r"\s*[\w.-]+:([0-9]+)\s*")
_LINE = re.compile(r"\s*[\w.-]+\s+slots=([0-9]+)\s*")


def check_hosts(
    hosts: str | None, hostfile: str | None, num_processes: int | None, elastic: bool = False
) -> None:
    """Rejects invalid hosts, and more processes than the hosts have slots.

    Args:
        hosts: value of `-H`, such as "host1:2,host2:2"; None if not passed.
        hostfile: value of `--hostfile`, a file with lines such as "host1 slots=2"; None if not
            passed.
        num_processes: value of `-np`; None if not passed.
        elastic: whether hosts may join later, so that there may be too few slots at first.

    Raises:
        OSError: the file cannot be read.
        ValueError: a host, a line or the number of processes is invalid; names it.
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
        raise ValueError(f"hostfile {str(path)!r} is not a text file") from None
    total = 0
    for number, line in enumerate(lines, start=1):
        found = _LINE.fullmatch(line)
        if not found:
            raise ValueError(
                f"hostfile {str(path)!r}: line {number} must be HOST slots=NUMBER, got {line!r:.80}"
            )
        total += int(found[1])
    return total
