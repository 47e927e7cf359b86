import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu.launch import (
    HOST_IDS,
    MULTI_RANK,
    Job,
    choose_placement,
    nccl_environment,
    nccl_log,
    run,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(
        step="curves",
        rank=0,
        world_size=4,
        teams={"planned": (0, 1), "own": (2, 3)},
        store=str(tmp_path / "store"),
        output=str(tmp_path / "curves.json"),
        folder=str(tmp_path),
        deadline=time.time() + 120,
        dry_run=True,
        sharing="mps",
        placement=HOST_IDS,
        method="tuner",
        tuner="/lib.so",
        threads=(128, 256),
        models=("vgg16",),
        batch_factor=1.0,
        seed=0,
    )


def test_a_job_travels_as_text(job: Job) -> None:
    found = Job.from_json(job.to_json())
    assert dataclasses.replace(found, teams=job.teams) == job
    assert found.teams == {"planned": [0, 1], "own": [2, 3]}


def test_two_ranks_of_one_gpu_connect_over_sockets(job: Job) -> None:
    environments = [nccl_environment(dataclasses.replace(job, rank=rank), 128) for rank in range(4)]
    assert len({environment["NCCL_HOSTID"] for environment in environments}) == 4
    assert all(environment["NCCL_NET"] == "Socket" for environment in environments)
    assert all(environment["NCCL_SOCKET_IFNAME"] == "lo" for environment in environments)


def test_new_nccl_puts_two_ranks_on_one_gpu_by_itself(job: Job) -> None:
    assert choose_placement((2, 29, 7)) == HOST_IDS
    assert choose_placement((2, 30, 0)) == choose_placement((3, 0)) == MULTI_RANK
    job = dataclasses.replace(job, placement=MULTI_RANK)
    for rank in range(4):
        found = nccl_environment(dataclasses.replace(job, rank=rank), 128)
        assert found["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
        assert found["NCCL_MAX_CTAS"] == "2"
        assert not {"NCCL_HOSTID", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NET"} & set(found)
    # Each of several communicators has its own number of channels.
    several = dataclasses.replace(job, method="communicators")
    assert "NCCL_MAX_CTAS" not in nccl_environment(several, 128)
    assert "NCCL_MAX_CTAS" in nccl_environment(dataclasses.replace(several, rank=2), 128)


def test_only_planned_ranks_follow_a_plan(job: Job) -> None:
    planned, own = (nccl_environment(dataclasses.replace(job, rank=rank), 128) for rank in (1, 2))
    assert planned["NCCL_NTHREADS"] == "128"
    assert planned["NCCL_TUNER_PLUGIN"] == "/lib.so"
    left_alone = {"NCCL_NTHREADS", "NCCL_TUNER_PLUGIN", "NCCL_ALGO", "NCCL_PROTO"}
    assert not left_alone & set(own)
    without = nccl_environment(dataclasses.replace(job, method="communicators"), 128)
    assert "NCCL_TUNER_PLUGIN" not in without and "NCCL_NTHREADS" in without


def test_the_proof_reads_the_log_of_nccl(job: Job) -> None:
    changed = dataclasses.replace(job, step="channels")
    environment = nccl_environment(changed, 128)
    assert environment["NCCL_DEBUG_FILE"] == str(nccl_log(changed))
    assert "TUNING" in environment["NCCL_DEBUG_SUBSYS"].split(",")
    assert "NCCL_DEBUG_FILE" not in nccl_environment(job, 128)


def test_a_rank_that_fails_is_reported_with_its_last_lines(job: Job) -> None:
    alone = dataclasses.replace(
        job, step="no_such_step", world_size=1, teams={"planned": (0,)}, method="communicators"
    )
    ended_well, problems = run([alone], [{"PYTHONPATH": str(ROOT)}])
    assert not ended_well
    (problem,) = problems
    assert problem.startswith("no_such_step, rank 0: status 1\n")
    assert "ModuleNotFoundError" in problem


def test_ranks_past_their_deadline_are_ended(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.launch._GRACE_SECONDS", 0.0)
    late = dataclasses.replace(job, deadline=time.time() - 1)
    ended_well, problems = run([late], [{"PYTHONPATH": str(ROOT)}])
    assert not ended_well
    assert problems[0].startswith("curves, rank 0: ended by force\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--steps", "curve"], "--steps must be any of"),
        (["--models", "lenet"], "--models must be any of"),
        (["--threads", "100"], "--threads must be multiples of 128"),
        (["--threads", "many"], "--threads must be whole numbers"),
        (["--budget", "0"], "--budget must be above 0"),
        (["--batch-factor", "-1"], "--batch-factor must be above 0"),
        (["--method", "luck"], "invalid choice"),
    ],
)
def test_flags_are_checked_before_anything_runs(
    tmp_path: Path, flags: list[str], message: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path / "out"), *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_machine_without_a_gpu_is_an_error_of_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PATH": "", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpu: ") and ("torch cannot" in line or "no GPU" in line)
    assert not (tmp_path / "out").exists()
