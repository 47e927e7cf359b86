"""The callbacks without another rank, or by what one says; jobs are those of `test_fit.py`."""

from typing import Any

import keras
import numpy as np
import pytest

from tf_libra.coordination import current_job
from tf_libra.keras.callbacks import AverageMetrics, BroadcastVariables


class Ranks:
    """This is rank 1 of two, of which the other has other metrics."""

    rank, world_size = 1, 2

    def __init__(self, theirs: dict[str, Any], batches: int | None = None) -> None:
        self.theirs, self.batches = theirs, batches
        self.barriers: list[tuple[str, str]] = []

    def barrier(self, what: str, function: str) -> None:
        self.barriers.append((what, function))

    def all_gather(self, message: Any) -> list[Any]:
        return [{"metrics": self.theirs, "batches": self.batches}, message]


def averaged(logs: dict[str, Any] | None, batches: int | None = None) -> dict[str, Any] | None:
    callback = AverageMetrics()
    callback.set_params({"steps": batches})
    callback.on_epoch_end(0, logs)
    return logs


def test_metrics_are_averaged_in_place_numbers_and_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks({"of_classes": [1.0, 3.0], "loss": 0.5})
    monkeypatch.setattr(current_job, "get_control", lambda: ranks)
    logs = averaged({"loss": np.float32(1.5), "of_classes": np.array([3.0, 4.0])})
    assert logs is not None
    assert logs["loss"] == 1.0 and type(logs["loss"]) is float
    np.testing.assert_array_equal(logs["of_classes"], [2.0, 3.5])
    assert ranks.barriers == [("between steps: the end of an epoch", "AverageMetrics")]


def test_training_metrics_have_the_weights_of_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks({"loss": 1.0, "val_loss": 1.0}, batches=1)
    monkeypatch.setattr(current_job, "get_control", lambda: ranks)
    assert averaged({"loss": 3.0, "val_loss": 3.0}, 3) == {"loss": 2.5, "val_loss": 2.0}
    assert averaged({"loss": 3.0, "val_loss": 3.0}, None) == {"loss": 2.0, "val_loss": 2.0}


def test_ranks_with_other_metrics_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks({"accuracy": 0.5, "loss": 1.0})
    monkeypatch.setattr(current_job, "get_control", lambda: ranks)
    logs: dict[str, Any] = {"loss": 1.0}
    with pytest.raises(ValueError, match=r"rank 0 has \['accuracy', 'loss'\], rank 1 \['loss'\]"):
        averaged(logs)
    assert logs == {"loss": 1.0}


def test_metrics_of_a_single_process_stay() -> None:
    assert averaged({"loss": 1}) == {"loss": 1}
    assert averaged(None) is None


def broadcasts(model: keras.Model) -> None:
    callback = BroadcastVariables()
    callback.set_model(model)
    callback.on_train_begin()


def test_a_model_without_variables_is_an_error_with_a_remedy() -> None:
    model = keras.Sequential([keras.layers.Dense(1)], name="late")
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"'late'.*keras\.Input"):
        broadcasts(model)


def test_variables_of_a_single_process_stay(horovod: None) -> None:
    """The optimizer's are there from now on, as they have to be everywhere."""
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1), keras.layers.Dropout(0.5)])
    model.compile("adam", "mse")
    before = [variable.numpy() for variable in model.variables]
    assert not model.optimizer.built
    broadcasts(model)
    assert model.optimizer.built
    for trained, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(trained.numpy(), value)


def test_metrics_that_keras_has_numbered_otherwise_are_averaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks({"auc": 0.5, "loss": 1.0})
    monkeypatch.setattr(current_job, "get_control", lambda: ranks)
    assert averaged({"auc_1": 1.0, "loss": 3.0}) == {"auc_1": 0.75, "loss": 2.0}
