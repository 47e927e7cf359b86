"""Reports about workers that do not end."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import process_stacks
from tests.forkserver import Nursery
from tests.worker_processes import running_workers, wait_for_output

HANGS = """
import sys, time
def waits_for_ever():
    print("waiting", flush=True)
    while True:
        time.sleep(3600)
if sys.argv[1] == "hang":
    waits_for_ever()
"""


@pytest.mark.parametrize("is_forked", [True, False])
def test_stacks_of_a_worker_that_hangs_are_shown(
    nursery: Nursery, tmp_path: Path, is_forked: bool
) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    server = nursery if is_forked else None
    with running_workers(str(script), 2, tmp_path, "hang", nursery=server) as workers:
        for rank in range(2):
            wait_for_output(workers, rank, "waiting", 120)
        with pytest.raises(pytest.fail.Exception) as raised:
            workers.wait(0.1)
    report = str(raised.value)
    assert report.count("in waits_for_ever") == 2
    assert report.count(" thread ") >= 2


def test_ended_worker_is_named_with_its_status(nursery: Nursery, tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text("raise SystemExit(7)")
    with running_workers(str(script), 1, tmp_path, nursery=nursery) as workers:
        workers.wait(60)
        assert "rank 0: ended with 7" in workers.describe()


def test_process_that_has_not_registered_survives(tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.touch()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert "not registered" in process_stacks.describe(process.pid, output)
        process.communicate(b"\n")
    assert process.returncode == 0
    assert "has ended" in process_stacks.describe(process.pid, output)
