"""Keras' `fit` as a pipeline: all that looks at weights finds those of one process."""

from collections.abc import Callable

import pytest

from tests.worker_processes import Job

# float32 weights after ten steps of Adam.
TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def job(run_job: Callable[..., Job]) -> Job:
    return run_job("pipeline_fit.py", 3)


@pytest.mark.parametrize("case", ["one_step", "several_steps"])
def test_weights_equal_those_of_one_process_whenever_they_are_read(job: Job, case: str) -> None:
    """Optimizer slots included; also where the callback is on one rank alone."""
    for rank in range(3):
        value = job.value(case, rank)
        errors = value["errors"]
        assert {"after", "predict", "evaluate"} <= errors.keys()
        assert max(errors.values()) < TOLERANCE, errors
        assert sorted(len(ranks) for ranks in value["stages"]) == [1, 2]
    looked = {name.split()[0] for name in errors} - {"after", "predict", "evaluate"}
    assert looked == ({"epoch", "train_batch"} if case == "one_step" else {"train_batch"})


def test_bursts_fit_to_the_weights_of_one_process_while_their_ranks_change(job: Job) -> None:
    for rank in range(3):
        errors = job.value("bursts", rank)["errors"]
        assert {"after", "predict", "evaluate"} <= errors.keys()
        assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize("case", ["one_step", "several_steps", "bursts"])
def test_metrics_are_those_of_the_joint_batches_on_every_rank(job: Job, case: str) -> None:
    """Also those of a stage whose replicas see a part of every batch."""
    for rank in range(3):
        value = job.value(case, rank)
        assert value["history"].keys() == value["expected"].keys()
        assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= value["history"].keys()
        for name, found in value["history"].items():
            assert found == pytest.approx(value["expected"][name], rel=1e-3, abs=1e-4), name


def test_checkpoint_of_one_rank_has_the_weights_of_its_batch(job: Job) -> None:
    assert job.value("one_step")["checkpoint"] < TOLERANCE


def test_weights_are_read_after_single_batches(job: Job) -> None:
    for rank in range(3):
        assert job.value("on_batch", rank)["pipeline"] < TOLERANCE


def test_another_optimize_begins_with_what_was_trained(job: Job) -> None:
    for rank in range(3):
        assert job.value("on_batch", rank)["taken_over"] < TOLERANCE


def test_last_batch_of_an_epoch_may_be_shorter(job: Job) -> None:
    for rank in range(3):
        assert job.value("shorter_last", rank) < TOLERANCE
