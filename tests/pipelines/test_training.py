"""Pipelines on real workers, from an unchanged script."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from tests.launching import Job
from tests.pipelines.job import batches, fresh
from tests.pipelines.models import EVERY

STEPS, SAMPLES, MICROBATCHES = 3, 48, 4
OTHERS = {"chosen": "deep", "data_parallel": "deep", "gpipe": "deep"}


@pytest.fixture(scope="module", params=[2, 3, 4])
def trained(request: pytest.FixtureRequest, run_job: Callable[..., Job]) -> Job:
    return run_job("pipelines.py", request.param)


def test_weights_and_what_a_step_returns_are_those_of_one_process(trained: Job) -> None:
    """On every rank, once variables are synchronized; optimizers' own variables included."""
    cases = [name for name, case in trained.cases(0).items() if case["error"] is None]
    assert {"convolutional", "transformer", "deep", "data_parallel"} <= set(cases)
    for name in cases:
        alone = fresh(EVERY[OTHERS.get(name, name)])
        wanted = [alone.accumulated(*step, MICROBATCHES) for step in batches(STEPS, SAMPLES)]
        every = [*alone.variables, *alone.state, *alone.optimizer.variables]
        for rank in range(trained.world_size):
            value = trained.value(name, rank)
            for got, want in zip(value["returned"], wanted, strict=True):
                np.testing.assert_allclose(got["loss"], want["loss"], rtol=1e-3, err_msg=name)
                assert np.shape(got["logits"]) == (SAMPLES, 10)
            last = value["returned"][-1]
            np.testing.assert_allclose(last["logits"], want["logits"], rtol=2e-3, atol=2e-4)
            assert last["updates"] == STEPS
            found = trained.arrays(name, rank)
            for number, one in enumerate(every):
                np.testing.assert_allclose(
                    found[str(number)],
                    tf.convert_to_tensor(one).numpy(),
                    rtol=1e-3,
                    atol=1e-4,
                    err_msg=f"{name}: {one.name} on rank {rank}",
                )


def test_every_worker_has_a_stage_or_a_replica_of_one(trained: Job) -> None:
    for name, case in trained.cases(0).items():
        if case["error"] is not None:
            continue
        stages = case["value"]["stages"]
        assert sorted(rank for ranks in stages for rank in ranks) == list(range(trained.world_size))
        assert case["value"]["settled"]
        kinds = {"deep": 2 if trained.world_size == 2 else trained.world_size, "data_parallel": 1}
        assert len(stages) == kinds.get(name, len(stages))


def test_explain_says_who_computes_what(trained: Job) -> None:
    text = trained.value("deep")["explained"]
    stages = trained.value("deep")["stages"]
    assert f"a pipeline of {len(stages)} stages under spp, {MICROBATCHES} microbatches" in text
    assert all(f"on rank {ranks[0]}" in text for ranks in stages)
    assert "this rank, of stage" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("trained", [2], indirect=True)  # refused alike by any number of workers
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("a_batch_not_divided", "num_microbatches must divide the batch of all ranks, 2 times 8"),
        ("more_stages_than_layers", "cannot be cut into stages: it has one layer"),
        ("more_stages_than_workers", "num_stages must be at most the number of workers, 2, got 3"),
        ("a_model_without_layers", "tf_libra.boundary is not called"),
    ],
)
def test_what_cannot_be_a_pipeline_is_refused_on_every_rank(
    trained: Job, case: str, message: str
) -> None:
    for rank in range(trained.world_size):
        error = trained.error(case, rank)
        assert error.startswith("ValueError: ") and message in error
