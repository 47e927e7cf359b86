"""Ranks that meet by a launcher's variables train as one process does, without Horovod."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.worker_processes import Job, launched

RANKS = [0, 1]


@pytest.fixture(scope="module")
def trained(run_job: Callable[..., Job]) -> Job:
    return run_job("launched.py", 2, meet=launched)


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
