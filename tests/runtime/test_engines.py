"""Several functions on one engine, and what a process runs out of, on Unix sockets and on TCP."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cluster import Cluster
from tests.forkserver import Nursery
from tests.worker_processes import DEADLINE_SECONDS, Job, running_workers
from tf_libra.runtime.plan_activation import NOT_EXECUTED

JOBS: dict[str, tuple[int, dict[str, str]]] = {
    "unix": (2, {}),
    "tcp": (3, {"TF_LIBRA_INTERFACE": "lo"}),
}


@pytest.fixture(scope="module", params=JOBS)
def engines(request: pytest.FixtureRequest, run_job: Callable[..., Job]) -> Job:
    world_size, env = JOBS[request.param]
    return run_job("engines.py", world_size, env=env)


def is_over_tcp(request: pytest.FixtureRequest) -> bool:
    return "TF_LIBRA_INTERFACE" in JOBS[request.node.callspec.params["engines"]][1]


def test_engine_grows_to_what_any_function_asks_for(engines: Job) -> None:
    for rank in range(engines.world_size):
        value: dict[str, Any] = engines.value("functions_with_more_and_more_threads", rank)
        assert value["lanes"][:4] == [1, 4, 4, 6]
        assert set(value["lanes"][4:]) == {6}
        assert value["threads"] == [[1], [1, 4, 2], [3, 1], [6]]
        # Every rank looks at what its lanes have executed.
        log = engines.log("functions_with_more_and_more_threads", rank)
        assert NOT_EXECUTED not in log


def test_functions_that_share_an_engine_train_as_one_process(engines: Job) -> None:
    for rank in range(engines.world_size):
        saved = engines.arrays("functions_with_more_and_more_threads", rank)
        ours = [name for name in saved if name.startswith("ours/")]
        assert len({name.split("/")[1] for name in ours}) == 4
        for name in ours:
            alone = saved[name.replace("ours/", "alone/")]
            np.testing.assert_allclose(saved[name], alone, rtol=1e-9, atol=1e-12, err_msg=name)


def check_weights(job: Job, case: str) -> None:
    for rank in range(job.world_size):
        saved = job.arrays(case, rank)
        for name in [name for name in saved if name.startswith("ours/")]:
            alone = saved[name.replace("ours/", "alone/")]
            np.testing.assert_allclose(saved[name], alone, rtol=1e-9, atol=1e-12, err_msg=name)


def test_memory_is_shared_within_a_host(engines: Job, request: pytest.FixtureRequest) -> None:
    """Unless the user has named an interface."""
    for rank in range(engines.world_size):
        num_segments = 0 if is_over_tcp(request) else 2
        assert engines.value("memory_shared_with_others", rank) == [num_segments, []]
    check_weights(engines, "memory_shared_with_others")


def test_ranks_on_two_hosts_train_as_one_process(
    make_cluster: Callable[..., Cluster], nursery: Nursery, tmp_path: Path
) -> None:
    """Each shares memory with the one other of its host, and reduces in two levels."""
    cases = "memory_shared_with_others functions_with_more_and_more_threads"
    env = {"TF_LIBRA_JOB_CASES": cases}
    with (
        make_cluster(2) as cluster,
        running_workers(
            "engines.py", 4, tmp_path, env=env, nursery=nursery, cluster=cluster
        ) as workers,
    ):
        workers.wait(DEADLINE_SECONDS)
        job = workers.job()
    assert job.returncodes == (0, 0, 0, 0), job.output(0)
    for rank in range(4):
        # One for the lane, one for messages.
        assert job.value("memory_shared_with_others", rank) == [2, []]
        assert job.value("functions_with_more_and_more_threads", rank)["lanes"][-1] == 6
    check_weights(job, "memory_shared_with_others")
    check_weights(job, "functions_with_more_and_more_threads")


def test_second_strategy_measures_with_more_threads(engines: Job) -> None:
    for rank in range(engines.world_size):
        value = engines.value("tuned_after_another", rank)
        assert (value["lanes"], value["phases"]) == (4, ["run", "run"])


def test_density_of_a_sparse_gradient_is_measured(
    engines: Job, request: pytest.FixtureRequest
) -> None:
    """All ranks have the same densities to plan with."""
    first = engines.value("tuned_after_another")["density"]
    for rank in range(engines.world_size):
        value = engines.value("tuned_after_another", rank)
        assert value["density"] == first
    explained = engines.value("tuned_after_another")["explained"]  # rank 0 has seen traced steps
    assert "zero blocks" in explained
    table = first.pop("table")
    assert set(first.values()) == {1.0}
    assert 0.019 < table < (0.032 if is_over_tcp(request) else 0.07)  # of larger blocks in memory


def test_concurrent_all_reduces_train_as_one_process(engines: Job) -> None:
    for rank in range(engines.world_size):
        value: dict[str, Any] = engines.value("concurrent_all_reduces", rank)
        assert value["phase"] == "run"
        assert value["lanes"] >= value["needed"] == 6
        assert NOT_EXECUTED not in engines.log("concurrent_all_reduces", rank)
        saved = engines.arrays("concurrent_all_reduces", rank)
        for name in [name for name in saved if name.startswith("alone/")]:
            for who in ("by_hand", "planned"):
                found = saved[name.replace("alone", who)]
                np.testing.assert_allclose(saved[name], found, rtol=1e-9, atol=1e-12, err_msg=name)


def test_cost_of_two_streams_is_measured_within_the_first_steps(engines: Job) -> None:
    """The gradients of a tiny model are there long before the first all-reduce has ended."""
    reported = []
    for rank in range(engines.world_size):
        value: dict[str, Any] = engines.value("two_concurrent_as_measured", rank)
        assert value["streams"] == 2
        [note] = [text for text in value["notes"] if "concurrent all-reduces" in text]
        assert f"{value['contention']:.2f}" in note
        assert NOT_EXECUTED not in engines.log("two_concurrent_as_measured", rank)
        reported.append(value)
    assert all(value == reported[0] for value in reported)


def test_soft_limit_of_descriptors_is_raised(engines: Job) -> None:
    for rank in range(engines.world_size):
        assert engines.value("soft_limit_of_descriptors", rank) is True


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("thread_that_cannot_start", ["the thread of lane ", " of 40 cannot start: "]),
        (
            "descriptors_that_one_rank_cannot_have",
            ["by 39 connections each, needs ", "this process may have ", "ulimit -n "],
        ),
    ],
)
def test_request_that_one_rank_cannot_satisfy_is_named_on_all(
    engines: Job, case: str, parts: list[str]
) -> None:
    last = engines.world_size - 1
    cause = engines.error(case, last)
    assert cause.startswith("EngineError: ")
    for part in [*parts, "while lanes 2 to 40 are added"]:
        assert part in cause
    for rank in range(last):
        message = engines.error(case, rank)
        assert message.startswith("HorovodInternalError: ")
        assert f"rank {rank}, " in message
    assert any(f"rank {last} gave up: " in engines.error(case, rank) for rank in range(last))


def test_too_low_a_limit_of_descriptors_is_named_by_every_rank(engines: Job) -> None:
    for rank in range(engines.world_size):
        message = engines.error("descriptors_that_nobody_can_have", rank)
        assert message.startswith("EngineError: ")
        assert f"rank {rank}, to connect to {engines.world_size - 1} other rank(s)" in message
        assert "file descriptors; " in message
        assert "ulimit -n " in message
