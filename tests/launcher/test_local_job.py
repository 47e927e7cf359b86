"""Ranks of this host: their variables, output, signals and ends, in real processes."""

import os
import signal
import subprocess
import sys

import pytest

from tests.worker_processes import worker_environment
from tf_libra.coordination.launcher_environment import detect
from tf_libra.launcher.local_job import rank_environments

LAUNCH = """
import os, sys
from tf_libra.launcher import local_job
sys.exit(local_job.run(sys.argv[2:], int(sys.argv[1]), os.environ))
"""
SECONDS = 120


def start(*command: str, num_ranks: int = 2, **variables: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(num_ranks), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="surrogateescape",
        env=worker_environment() | variables,
        start_new_session=True,
        # The launcher ignores SIGHUP if it was ignored before, as where nohup runs the tests.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )


def run(*command: str, num_ranks: int = 2, **variables: str) -> tuple[int, list[str], list[str]]:
    """Returns status of a job, and its lines on stdout and stderr."""
    job = start(*command, num_ranks=num_ranks, **variables)
    out, err = job.communicate(timeout=SECONDS)
    return job.returncode, out.splitlines(), err.splitlines()


def shell(text: str, num_ranks: int = 2, **variables: str) -> tuple[int, list[str], list[str]]:
    return run("sh", "-c", text, num_ranks=num_ranks, **variables)


def test_variables_are_those_that_ranks_detect() -> None:
    inherited = {"TORCHELASTIC_USE_AGENT_STORE": "True", "HOROVOD_RANK": "7", "OTHER": "x"}
    first, second = rank_environments(2, 4321, inherited)
    for rank, env in enumerate((first, second)):
        found = detect(env)
        assert found is not None
        place = (found.rank, found.world_size, found.local_rank, found.local_world_size)
        assert place == (rank, 2, rank, 2)
        assert (found.address, found.ports) == ("127.0.0.1", range(4321, 4322))
        assert env["OTHER"] == "x"
    assert first["TF_LIBRA_SECRET"] == second["TF_LIBRA_SECRET"]
    assert first["TF_LIBRA_SECRET"] != rank_environments(2, 1, {})[0]["TF_LIBRA_SECRET"]


@pytest.mark.parametrize("name", ["TF_LIBRA_SECRET", "TF_LIBRA_SECRET_FILE"])
def test_secret_of_the_user_is_used(name: str) -> None:
    [env] = rank_environments(1, 4321, {name: "mine"})
    assert {variable: env[variable] for variable in env if "SECRET" in variable} == {name: "mine"}


def test_lines_of_other_ranks_have_a_prefix() -> None:
    status, out, err = shell(
        "printf 'caf\\303\\251 %s\\n\\377' $RANK; echo to stderr >&2; test -z \"$(cat)\""
    )
    assert status == 0
    assert sorted(out) == sorted(
        f"{prefix}{line}"
        for rank, prefix in enumerate(("", "[1]<stdout>:"))
        for line in (f"caf\N{LATIN SMALL LETTER E WITH ACUTE} {rank}", "\udcff")
    )
    assert sorted(err) == ["[1]<stderr>:to stderr", "to stderr"]


def test_startup_lines_of_tensorflow_are_hidden() -> None:
    lines = (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795768410.589348   26527 port.cc:153] oneDNN custom operations are on.",
        "I1127 08:33:48.502230 139955209329536 rendezvous.py:185] engine: lanes",
        "E0000 00:00:1795768410.589348   26527 cuda.cc:153] no device",
    )
    said = "; ".join(f"echo '{line}' >&2" for line in lines)
    assert shell(said, 1, TF_CPP_MIN_LOG_LEVEL="1") == (0, [], list(lines[2:]))
    assert shell(said, 1, TF_CPP_MIN_LOG_LEVEL="0") == (0, [], list(lines))


def test_first_failure_ends_the_other_ranks() -> None:
    status, out, err = shell("[ $RANK = 1 ] && { echo no >&2; exit 3; }; exec sleep 600", 3)
    assert (status, out) == (1, [])
    assert err[:3] == ["[1]<stderr>:no", "", "tf-libra run: the job has ended with an error"]
    assert err[3] == "rank 1: exit status 3: no"
    assert not any("TF_LIBRA_TRACEBACK" in line for line in err), "there is no traceback"


def test_rank_that_a_signal_ends_is_named() -> None:
    status, _, err = shell("[ $RANK = 0 ] && kill -KILL $$; exec sleep 600")
    assert status == 1
    assert "rank 0: ended by SIGKILL, as when memory runs out" in err


def test_program_that_is_missing_is_named() -> None:
    status, out, err = run("absent-program")
    assert (status, out) == (2, [])
    assert len(err) == 1 and "'absent-program'" in err[0]


def test_process_that_stays_behind_does_not_keep_the_job() -> None:
    status, out, _ = shell("sleep 600 & echo $!", 1)
    assert status == 0
    os.kill(int(out[0]), signal.SIGKILL)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_ends_ranks_after_their_handlers(number: signal.Signals, status: int) -> None:
    job = start("sh", "-c", "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.1; done")
    assert job.stdout is not None and job.stderr is not None
    ready = {job.stdout.readline(), job.stdout.readline()}
    assert ready == {"ready\n", "[1]<stdout>:ready\n"}
    job.send_signal(number)
    out, err = job.communicate(timeout=SECONDS)
    assert job.returncode == status
    assert sorted(out.splitlines()) == ["[1]<stdout>:bye", "bye"]
    assert err.splitlines()[-1].startswith("tf-libra run: ended by ")


def test_closed_output_ends_the_job() -> None:
    job = start("sh", "-c", "while :; do echo line; done")
    assert job.stdout is not None
    assert job.stdout.readline()
    job.stdout.close()
    assert job.wait(SECONDS) == 1


def test_ranks_end_with_a_launcher_that_is_killed() -> None:
    job = start("sh", "-c", "echo $$; while :; do sleep 0.1; done", num_ranks=1)
    assert job.stdout is not None
    assert job.stdout.readline()
    job.kill()
    assert job.stdout.read() == ""  # ends when the rank has ended
    job.wait(SECONDS)
