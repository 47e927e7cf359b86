"""A command on idle time, and the errors of one that cannot run so."""

import os
import subprocess
import sys

import pytest

IDLE = [sys.executable, "-m", "tf_libra.background_jobs.sched_idle_exec"]
POLICY = "import os; print(os.sched_getscheduler(0) == os.SCHED_IDLE)"


def run(parent: int, *command: str) -> subprocess.CompletedProcess[str]:
    begins, write = os.pipe()
    try:
        return subprocess.run(
            [*IDLE, str(parent), str(write), *command],
            capture_output=True,
            text=True,
            pass_fds=[write],
            timeout=300,
        )
    finally:
        os.close(begins)
        os.close(write)


def test_a_command_has_the_policy_from_its_first_instruction() -> None:
    done = run(os.getpid(), sys.executable, "-c", POLICY)
    assert (done.returncode, done.stdout.strip()) == (0, "True")


def test_job_does_not_begin_once_its_starter_has_ended() -> None:
    done = run(os.getpid() + 10**7, sys.executable, "-c", "print('begun')")
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("command", ["/absent/command", "/etc/hostname"])
def test_command_that_cannot_run_exits_as_in_a_shell(command: str) -> None:
    done = run(os.getpid(), command)
    assert done.returncode == 127
    assert f"tf-libra: cannot run '{command}': " in done.stderr
    assert len(done.stderr.splitlines()) == 1
