"""A command runs while other processes keep the cores busy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "under_load.py"
COUNT_BUSY = (
    "import os, pathlib\n"
    "parent = os.getppid()\n"
    "children = pathlib.Path(f'/proc/{parent}/task/{parent}/children').read_text().split()\n"
    "print('busy', len(children) - 1)\n"
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True)


def test_command_has_one_busy_process_per_core_next_to_it() -> None:
    done = run(sys.executable, "-c", COUNT_BUSY)
    assert done.returncode == 0
    assert f"busy {len(os.sched_getaffinity(0))}" in done.stdout


@pytest.mark.parametrize(("status", "runs"), [(0, 3), (4, 1)])
def test_runs_end_with_the_first_failure(status: int, runs: int) -> None:
    done = run("--times", "3", sys.executable, "-c", f"print('ran'); raise SystemExit({status})")
    assert done.returncode == status
    assert done.stdout.count("ran\n") == runs


def test_missing_command_is_a_usage_error() -> None:
    assert run("--times", "2").returncode == 2
