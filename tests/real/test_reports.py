"""Situations of users that were reported in public, of ranks without Horovod and strategies."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cluster import Cluster
from benchmarks.rendezvous_env import free_addresses, tf_configs
from tests.forkserver import Nursery
from tests.worker_processes import DEADLINE_SECONDS, Job, running_workers

FOLDER = Path(__file__).parent
RANKS = [0, 1]
FITS = [
    "convnet_of_the_tutorial",
    "dictionaries_of_inputs",
    "texts_of_any_length",
    "accumulation_in_train_step",
    "bfloat16_accumulated_and_clipped",
]
BY_HAND = ["loop_of_the_tutorial", "two_jobs_in_turn"]


@pytest.fixture(scope="module")
def run(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Job]:
    """A function that runs a script of this folder under TF_CONFIG."""

    def run(
        script: str, *args: str, addresses: list[str] | None = None, cluster: Cluster | None = None
    ) -> Job:
        variables = tf_configs(addresses or free_addresses(2))
        with running_workers(
            *(str(FOLDER / script), 2, tmp_path_factory.mktemp("reports"), *args),
            env={"TF_LIBRA_JOB_LAUNCHED": "1"},
            nursery=nursery,
            cluster=cluster,
            launcher=lambda _: contextlib.nullcontext(variables),
        ) as workers:
            workers.wait(DEADLINE_SECONDS)
            return workers.job()

    return run


@pytest.fixture(scope="module")
def trained(run: Callable[..., Job]) -> Job:
    job = run("reports.py")
    assert job.returncodes == (0, 0), job.output(0)
    return job


def weights(job: Job, case: str, kind: str, rank: int) -> dict[str, np.ndarray]:
    job.value(case, rank)
    prefix = f"{kind}/"
    found = job.arrays(case, rank).items()
    return {name.removeprefix(prefix): v for name, v in found if name.startswith(prefix)}


@pytest.mark.parametrize("case", [*FITS, *BY_HAND])
def test_ranks_have_the_same_bits(trained: Job, case: str) -> None:
    first, second = (weights(trained, case, "ours", rank) for rank in RANKS)
    assert first and first.keys() == second.keys()
    for name, value in first.items():
        assert value.tobytes() == second[name].tobytes()


@pytest.mark.parametrize("case", [*FITS, *BY_HAND])
def test_weights_are_those_of_one_process(trained: Job, case: str) -> None:
    tolerance = 3e-2 if "bfloat16" in case else 2e-5  # of bfloat16: a bit is 2 to the -8
    wanted = weights(trained, case, "alone", 0)
    found = weights(trained, case, "ours", 0)
    assert wanted and wanted.keys() == found.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=10 * tolerance, atol=tolerance)


@pytest.mark.parametrize("case", FITS)
def test_fit_runs_under_a_plan_with_the_metrics_of_all_ranks(trained: Job, case: str) -> None:
    first, second = (trained.value(case, rank) for rank in RANKS)
    assert first["phase"] == second["phase"] == "run"
    assert first["history"]["loss"] == second["history"]["loss"]


def test_loop_by_hand_runs_under_a_plan(trained: Job) -> None:
    assert [trained.value("loop_of_the_tutorial", rank) for rank in RANKS] == ["run", "run"]


def test_second_job_of_a_process_has_its_own_ranks(trained: Job) -> None:
    assert trained.value("two_jobs_in_turn", 0) == [[0, "run"], [1, "run"]]
    assert trained.value("two_jobs_in_turn", 1) == [[1, "run"], [0, "run"]]


def errors(job: Job) -> list[dict[str, Any]]:
    """Returns the error of each rank; each is one line."""
    assert job.returncodes == (0, 0), job.output(0) + job.output(1)
    found = [json.loads((job.folder / f"error.{rank}.json").read_text()) for rank in RANKS]
    assert not any("\n" in error["message"] for error in found)
    return found


def test_loopback_address_on_two_hosts_is_named(
    run: Callable[..., Job], make_cluster: Callable[..., Cluster]
) -> None:
    with make_cluster(2) as cluster:
        addresses = ["localhost:22222", "localhost:23333"]
        job = run("report_failures.py", "loopback", addresses=addresses, cluster=cluster)
    for error in errors(job):
        assert error["type"] == "UnavailableError"
        assert ":22222, a loopback address" in error["message"]


def test_rank_that_is_later_than_the_deadline_is_named(run: Callable[..., Job]) -> None:
    first, second = errors(run("report_failures.py", "late"))
    assert (first["type"], second["type"]) == ("UnavailableError", "UnavailableError")
    assert "for rank 1 at" in first["message"]
    assert "for rank 0 at" in second["message"]


def test_missing_task_is_an_error_of_every_rank(run: Callable[..., Job]) -> None:
    for error in errors(run("report_failures.py", "missing_task")):
        assert error["type"] == "ValueError"
        assert "TF_CONFIG: task" in error["message"]


def test_rank_that_ends_before_the_others_is_named(run: Callable[..., Job]) -> None:
    first, second = errors(run("report_failures.py", "ends_early"))
    assert (first["type"], second["type"]) == ("UnavailableError", "")
    assert "rank 1" in first["message"] and "step 5" in first["message"]


def test_rank_that_ends_after_its_last_step_disturbs_no_other(run: Callable[..., Job]) -> None:
    job = run("report_failures.py", "ends_first")
    assert [error["type"] for error in errors(job)] == ["", ""]
    assert "0 2" in job.output(0)
