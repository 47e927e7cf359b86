"""Memory that this host, or the container of the process, still has."""

from collections.abc import Iterator
from pathlib import Path


def available_bytes(root: Path = Path("/")) -> int | None:
    """Returns bytes that processes can allocate without swapping; None if the system cannot say.

    The least of the host's and those of the control group's limit, of version 2 or 1. Files that
    were read long ago count as available.

    Args:
        root: root of the file system.
    """
    return min(_candidates(root), default=None)


def _candidates(root: Path) -> Iterator[int]:
    host = _read(root / "proc/meminfo").get("MemAvailable:")
    if host is not None:
        yield host * 1024
    for folder, limit, usage, reclaimable in (
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        (
            "sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ):
        most, used = (_read_number(root / folder / name) for name in (limit, usage))
        if most is not None and used is not None:
            yield most - used + _read(root / folder / "memory.stat").get(reclaimable, 0)


def _read(path: Path) -> dict[str, int]:
    """Returns the first number of each line by the word before it."""
    words = [line.split() for line in _read_text(path).splitlines()]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}


def _read_number(path: Path) -> int | None:
    text = _read_text(path).strip()  # "max": no limit
    return int(text) if text.isdigit() else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
