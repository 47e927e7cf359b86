"""The server that forks the tests' workers."""

import os
from pathlib import Path

import pytest

from tests.forkserver import Nursery
from tests.worker_processes import worker_environment

NEXT_PROCESS = Path("/proc/sys/kernel/ns_last_pid")


@pytest.mark.skipif(not os.access(NEXT_PROCESS, os.W_OK), reason="numbers processes as it likes")
def test_a_worker_ends_with_its_own_status_after_reuse_of_its_number(
    nursery: Nursery, tmp_path: Path
) -> None:
    environment, output = worker_environment(), tmp_path / "output"
    scripts = [tmp_path / "first.py", tmp_path / "second.py"]
    for status, script in enumerate(scripts, start=1):
        script.write_text(f"raise SystemExit({status})")
    for _ in range(500):  # others start processes, too, and one may keep the number
        first = nursery.fork(scripts[0], (), environment, output)
        assert first.wait(60) == 1
        NEXT_PROCESS.write_text(str(first.pid - 1))
        second = nursery.fork(scripts[1], (), environment, output)
        status = second.wait(60)
        if second.pid == first.pid:
            break
    assert (second.pid, status) == (first.pid, 2)
