"""Ranks that meet by a launcher's variables train as one process does, without Horovod."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cluster import Cluster
from benchmarks.rendezvous_env import tf_configs
from tests.forkserver import Nursery
from tests.worker_processes import DEADLINE_SECONDS, Job, launched, running_workers

RANKS = [0, 1]


@pytest.fixture(scope="module")
def trained(run_job: Callable[..., Job]) -> Job:
    return run_job("launched.py", 2, launcher=launched)


@pytest.mark.parametrize("case", ["hand_written", "in_a_thread", "keras_fit", "pipeline", "burst"])
def test_weights_are_those_of_one_process(trained: Job, case: str) -> None:
    wanted = {
        name.removeprefix("alone/"): value
        for name, value in trained.arrays(case, 0).items()
        if name.startswith("alone/")
    }
    assert wanted
    for rank in RANKS:
        trained.value(case, rank)
        found = trained.arrays(case, rank)
        for name, value in wanted.items():
            np.testing.assert_allclose(found[f"ours/{name}"], value, rtol=2e-4, atol=2e-5)
            np.testing.assert_array_equal(
                found[f"ours/{name}"], trained.arrays(case, 0)[f"ours/{name}"]
            )


@pytest.mark.parametrize("rank", RANKS)
def test_place_is_known(trained: Job, rank: int) -> None:
    assert trained.value("places", rank) == [rank, 2, rank, 2]


@pytest.mark.parametrize("rank", RANKS)
def test_steps_run_under_a_plan(trained: Job, rank: int) -> None:
    for case in ("hand_written", "in_a_thread", "keras_fit"):
        assert trained.value(case, rank)["phase"] == "run"
    assert trained.value("pipeline", rank) == "PipelinePlan"
    assert trained.value("burst", rank) == "BurstPlan"


@pytest.mark.parametrize("rank", RANKS)
def test_next_job_begins_with_the_cached_plan(trained: Job, rank: int) -> None:
    tuned, cached = trained.value("cached_plan", rank)
    assert tuned > cached == 1


def test_metrics_are_averaged(trained: Job) -> None:
    first, second = (trained.value("keras_fit", rank)["history"] for rank in RANKS)
    assert first == second
    assert first["loss"][-1] < first["loss"][0]


@pytest.mark.parametrize("rank", RANKS)
def test_collectives_work(trained: Job, rank: int) -> None:
    assert trained.value("collectives", rank) == 3.0


@pytest.mark.parametrize("rank", RANKS)
def test_engine_of_horovod_is_rejected(trained: Job, rank: int) -> None:
    assert trained.error("engine_of_horovod", rank).startswith("ValueError: engine must be 'lanes'")


@pytest.mark.parametrize("rank", RANKS)
def test_horovod_is_not_imported(trained: Job, rank: int) -> None:
    assert trained.value("imported", rank) == []


def tf_config(addresses: list[str]) -> list[dict[str, str]]:
    return tf_configs([f"{address}:23456" for address in addresses])


def slurm(addresses: list[str]) -> list[dict[str, str]]:
    job = {
        "SLURM_NTASKS": str(len(addresses)),
        "SLURM_STEP_NODELIST": ",".join(addresses),
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "TF_LIBRA_SECRET": "of the job",
    }
    return [
        job | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": "0"} for rank in range(len(addresses))
    ]


@pytest.mark.parametrize("variables", [tf_config, slurm])
def test_ranks_on_two_hosts_train_as_one_process(
    variables: Callable[[list[str]], list[dict[str, str]]],
    make_cluster: Callable[..., Cluster],
    nursery: Nursery,
    tmp_path: Path,
) -> None:
    """No interface is named: lanes use the one by which ranks reach rank 0."""
    env = {"TF_LIBRA_JOB_CASES": "places hand_written", "TF_LIBRA_JOB_LAUNCHED": "1"}
    with make_cluster(2) as cluster:
        places = variables([host.address for host in cluster.hosts])
        with running_workers(
            *("launched.py", 2, tmp_path),
            env=env,
            nursery=nursery,
            cluster=cluster,
            launcher=lambda _: contextlib.nullcontext(places),
        ) as workers:
            workers.wait(DEADLINE_SECONDS)
            job = workers.job()
    assert job.returncodes == (0, 0), job.output(0)
    for rank in RANKS:
        assert job.value("places", rank) == [rank, 2, 0, 1]
        assert job.value("hand_written", rank)["phase"] == "run"
    saved = job.arrays("hand_written", 0)
    for name in [name for name in saved if name.startswith("ours/")]:
        wanted = saved[name.replace("ours/", "alone/")]
        np.testing.assert_allclose(saved[name], wanted, rtol=2e-4, atol=2e-5)
        np.testing.assert_array_equal(saved[name], job.arrays("hand_written", 1)[name])
