"""Keras' `fit` as a pipeline: all that looks at weights finds those of one process."""

from collections.abc import Callable
from typing import Any

import keras
import pytest

from tests.worker_processes import Job
from tf_libra.keras.staged_fit import find_sync_points

# float32 weights after ten steps of Adam.
TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def job(run_job: Callable[..., Job]) -> Job:
    return run_job("pipeline_fit.py", 3)


@pytest.mark.parametrize("case", ["epochs", "batches", "several_steps"])
def test_weights_are_those_of_one_process_whenever_they_are_looked_at(job: Job, case: str) -> None:
    """Optimizer slots included; also where the callback is on one rank alone."""
    for rank in range(3):
        value = job.value(case, rank)
        errors = value["errors"]
        assert {"after", "predict", "evaluate"} <= errors.keys()
        assert max(errors.values()) < TOLERANCE, errors
        assert sorted(len(ranks) for ranks in value["stages"]) == [1, 2]
    looked = {name.split()[0] for name in errors} - {"after", "predict", "evaluate"}
    assert looked == {"epochs": {"epoch"}}.get(case, {"train_batch"})


def test_bursts_fit_to_the_weights_of_one_process_while_their_ranks_change(job: Job) -> None:
    for rank in range(3):
        errors = job.value("bursts", rank)["errors"]
        assert {"after", "predict", "evaluate"} <= errors.keys()
        assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize("case", ["epochs", "several_steps", "bursts"])
def test_metrics_are_those_of_the_joint_batches_on_every_rank(job: Job, case: str) -> None:
    """Also those of a stage whose replicas see a part of every batch."""
    for rank in range(3):
        value = job.value(case, rank)
        assert value["history"].keys() == value["expected"].keys()
        assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= value["history"].keys()
        for name, found in value["history"].items():
            assert found == pytest.approx(value["expected"][name], rel=1e-3, abs=1e-4), name


def test_what_is_done_for_a_callback_is_said_once(job: Job) -> None:
    reported = [line for line in job.log("batches").splitlines() if "looks_at_weights" in line]
    assert len(reported) == 1 and "Watching" in reported[0]
    assert "looks_at_weights" not in job.log("epochs")
    assert "looks_at_weights" not in job.log("checkpoint")


def test_checkpoint_of_one_rank_has_the_weights_of_its_batch(job: Job) -> None:
    assert job.value("checkpoint") < TOLERANCE


def test_weights_that_are_not_up_to_date_are_not_looked_at(job: Job) -> None:
    for rank in range(3):
        value = job.value("on_batch", rank)
        for name, message in value["messages"].items():
            assert message.startswith(f"{name} of model 'staged'"), message
            assert "synchronize_variables()" in message
        assert value["error"] < TOLERANCE


def test_another_optimize_begins_with_what_was_trained(job: Job) -> None:
    for rank in range(3):
        assert job.value("taken_over", rank) < TOLERANCE


def test_last_batch_of_an_epoch_may_be_shorter(job: Job) -> None:
    for rank in range(3):
        assert job.value("shorter_last", rank) < TOLERANCE


class OfTheUser(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


class Quiet(OfTheUser):
    looks_at_weights = False


class AtEpochs(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        pass


def saving(every: Any) -> Any:
    return keras.callbacks.ModelCheckpoint("x.keras", save_freq=every)


@pytest.mark.parametrize(
    ("callbacks", "steps", "expected"),
    [
        (None, 1, []),
        ([], 1, []),
        (OfTheUser(), 1, [1]),
        ([Quiet(), AtEpochs(), keras.callbacks.TerminateOnNaN()], 1, []),
        ([keras.callbacks.EarlyStopping(), keras.callbacks.TensorBoard("somewhere")], 1, []),
        ([keras.callbacks.LambdaCallback(on_epoch_end=print)], 1, []),
        ([keras.callbacks.LambdaCallback(on_train_batch_begin=print)], 1, [1]),
        ([saving(7), saving("epoch"), OfTheUser()], 1, [7, 1]),
        ([saving(7)], 2, [1]),
        (keras.callbacks.CallbackList([OfTheUser()], add_progbar=True), 1, [1]),
    ],
)
def test_which_callbacks_look_at_weights_after_batches(
    callbacks: Any, steps: int, expected: list[int]
) -> None:
    assert [
        find_sync_point.every for find_sync_point in find_sync_points(callbacks, steps)
    ] == expected


def test_saving_counts_as_keras_does() -> None:
    """From one `fit` to the next, too."""
    callback = saving(3)
    saved = [callback._should_save_on_batch(batch) for batch in [0, 1, 2, 3, 4, 0, 1]]
    [look] = find_sync_points(callback, 1)
    more = [2, 3, 4, 0, 1, 2, 3]
    assert [look.is_next(1) for _ in more] == [callback._should_save_on_batch(b) for b in more]
    assert saved.count(True) == 2
