"""Finding and reading of trace files."""

import os
from pathlib import Path

import pytest

from tf_libra.profiling.xplane import find_trace, read_trace


def touch(folder: Path, *names: str) -> list[Path]:
    paths = [folder / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


@pytest.mark.parametrize("below", ["", "plugins/profile", "plugins/profile/2026_02"])
def test_newest_session_counts(tmp_path: Path, below: str) -> None:
    older, newer = touch(
        tmp_path,
        "plugins/profile/2026_01/host.xplane.pb",
        "plugins/profile/2026_02/host.xplane.pb",
    )
    os.utime(older, (2e9, 2e9))  # the sessions' names count, not when they were copied
    assert find_trace(tmp_path / below) == newer


def test_run_below_the_log_directory(tmp_path: Path) -> None:
    [path] = touch(tmp_path, "train/plugins/profile/2026_01/host.xplane.pb")
    assert find_trace(tmp_path) == path
    assert find_trace(path) == path


def test_several_hosts_must_be_distinguishable(tmp_path: Path) -> None:
    touch(tmp_path, "plugins/profile/1/a.xplane.pb", "plugins/profile/1/b\n.xplane.pb")
    with pytest.raises(ValueError, match=r"'a.xplane.pb', 'b\\n.xplane.pb'"):
        find_trace(tmp_path)


def test_no_trace(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no trace"):
        find_trace(tmp_path)
    with pytest.raises(FileNotFoundError):
        find_trace(tmp_path / "missing")


def test_not_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(ValueError, match="not a trace of"):
        read_trace(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="without a plane /host:CPU"):
        read_trace(path)
