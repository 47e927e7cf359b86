"""Memory that the host has, or lets a container have."""

from pathlib import Path

import pytest

from tf_libra.internal.available_memory import available_bytes

MEMINFO = "MemTotal:       24000 kB\nMemFree:          100 kB\nMemAvailable:   16000 kB\n"
HOST = 16000 * 1024


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def group(limit: str, used: str, inactive: int = 0, version: int = 2) -> dict[str, str]:
    folder = "sys/fs/cgroup" if version == 2 else "sys/fs/cgroup/memory"
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return {
        "proc/meminfo": MEMINFO,
        f"{folder}/{names[0]}": f"{limit}\n",
        f"{folder}/{names[1]}": f"{used}\n",
        f"{folder}/memory.stat": f"anon 5\n{names[2]} {inactive}\n",
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/meminfo": MEMINFO}, HOST),
        (group("max", "1000"), HOST),
        (group("9223372036854771712", "1000", version=1), HOST),
        (group("5000", "3000"), 2000),
        (group("5000", "3000", inactive=500), 2500),
        (group("5000", "3000", inactive=500, version=1), 2500),
        (group("5000", "6000"), -1000),
    ],
)
def test_available_memory(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    assert available_bytes(system(tmp_path, files)) == expected


def test_this_host_has_some_memory() -> None:
    available = available_bytes()
    assert available is not None and available > 0
