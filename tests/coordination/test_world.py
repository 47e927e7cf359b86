"""The processes that are taken to be on the same machine."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tf_libra.coordination.world import cores_per_worker, host_identity


def test_another_process_on_this_host_has_the_same_identity() -> None:
    reported = "from tf_libra.coordination.world import host_identity; print(host_identity())"
    there = subprocess.run(
        [sys.executable, "-c", reported], check=True, capture_output=True, text=True
    )
    assert there.stdout.strip() == host_identity()
    assert host_identity() == host_identity()


def test_containers_and_reboots_have_other_identities(monkeypatch: pytest.MonkeyPatch) -> None:
    own = host_identity()
    monkeypatch.setattr(Path, "read_text", lambda self: "another start\n")
    restarted = host_identity()
    stat = os.stat

    def of_a_container(path: Any, **how: Any) -> Any:
        return stat("/proc/self" if path == "/proc/self/ns/net" else path, **how)

    monkeypatch.setattr(os, "stat", of_a_container)
    assert len({own, restarted, host_identity()}) == 3


def test_unreadable_host_identity_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path) -> str:
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_text", missing)
    assert host_identity() == ""


@pytest.mark.parametrize(
    ("bound", "inherited", "local_size", "cores"),
    [(8, 8, 2, 4), (8, 8, 16, 1), (2, 8, 2, 2), (4, 4, 4, 1)],
)
def test_workers_share_the_cores_that_they_are_not_bound_to(
    bound: int, inherited: int, local_size: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last case is a container with a part of its host's cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda pid: set(range(bound if pid == 0 else inherited))
    )
    assert cores_per_worker(local_size) == cores
