"""Ranks that MPICH's `mpiexec` starts train as one job, which reads MPI's variables alone."""

import shutil
import subprocess
import sys

import pytest

from tests.worker_processes import DEADLINE_SECONDS, ROOT, worker_environment


@pytest.mark.workers
def test_ranks_of_mpiexec_train_as_one_job() -> None:
    mpiexec = shutil.which("mpiexec")
    assert mpiexec is not None, "mpiexec is missing: make setup installs MPICH's wheel"
    # Without `tests/startup`: interpreters begin and end as a user's.
    environment = worker_environment() | {"PYTHONPATH": str(ROOT)}
    command = [mpiexec, "-n", "2", sys.executable, str(ROOT / "tools" / "train_two_ranks.py")]
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "by the variables of mpi" in done.stderr
    assert "2 ranks trained" in done.stdout
