"""Callbacks for data-parallel `fit`."""

from typing import Any

import keras
import numpy as np

from tf_libra import collectives
from tf_libra.capture.automatic_names import renames_to_first, with_names_of
from tf_libra.capture.variables import is_random_state, plain
from tf_libra.config.validators import check_timeout
from tf_libra.coordination import current_job, horovod_job
from tf_libra.coordination.consistency_check import first_difference
from tf_libra.coordination.job import Job
from tf_libra.keras import multi_worker_fit


class BroadcastVariables(keras.callbacks.Callback):
    """Copies rank 0's variables of model and optimizer to all ranks before training.

    Use it for weights that only rank 0 has loaded. `broadcast_variables="always"` does
    the same before the first step after `compile`; this callback does it before every `fit`. States
    of random number generators stay rank-local, so that dropout differs. A
    `MultiWorkerMirroredStrategy` makes its variables equal by itself.
    """

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Broadcasts, with Horovod under Horovod, else over lanes.

        Raises:
            ValueError: the model has no variables yet, or the ranks have different variables.
            HorovodInternalError: another rank is in a step, or lost; `tf.errors.UnavailableError`
                in a job without Horovod.
        """
        model, optimizer = self.model, self.model.optimizer
        if multi_worker_fit.is_of_workers(model):
            return
        if not model.built:
            raise ValueError(
                f"model {model.name!r} has no variables yet: add a keras.Input, or call build,"
                " before fit"
            )
        variables = list(model.variables)
        if optimizer is not None:
            if not optimizer.built:  # else rank 0 may have slots that others lack
                optimizer.build(model.trainable_variables)
            known = {id(variable) for variable in variables}
            variables += [v for v in optimizer.variables if id(v) not in known]
        variables = [v for v in variables if not is_random_state(v)]
        paths = [v.path for v in variables]
        kinds = [f"{v.dtype} {tuple(v.shape)}" for v in variables]
        # A rank that still trains takes part in no other exchange.
        current_job.barrier("the beginning of fit", type(self).__name__)
        job = current_job.get_job()
        everyone = [{"paths": paths, "kinds": kinds}]
        if job.rank_and_size()[1] > 1:
            everyone = job.exchange_json(everyone[0], check_timeout("timeout_seconds", None))
        found = renames_to_first([rank["paths"] for rank in everyone])
        described = [
            [
                f"{names.get(path, path)}: {kind}"
                for path, kind in zip(rank["paths"], rank["kinds"], strict=True)
            ]
            for rank, names in zip(everyone, found, strict=True)
        ]
        difference = first_difference([{"variable": variables} for variables in described])
        if difference is not None:
            raise ValueError(
                f"the ranks' variables do not agree, nothing was broadcast: {difference}"
            )
        _copy([plain(variable) for variable in variables], job)
        _use_statistics(model)


def _copy(variables: list[Any], job: Job) -> None:
    """Copies rank 0's values of `tf.Variable`s to all ranks."""
    size = job.rank_and_size()[1]
    if isinstance(job, horovod_job.HorovodJob):
        horovod_job.broadcast_variables(variables)
    elif size > 1:
        collectives.connect()
        for number, variable in enumerate(variables):
            name = f"{BroadcastVariables.__name__} {number}"
            variable.assign(collectives.broadcast(variable.read_value(), 0, range(size), name))


def _use_statistics(model: keras.Model) -> None:
    """Makes `Normalization` layers use the current statistics in their variables."""
    layers = [
        layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Normalization)
    ]
    for layer in layers:
        layer.finalize_state()
    if layers:  # earlier traces have the statistics as constants
        model.predict_function = model.test_function = None


class AverageMetrics(keras.callbacks.Callback):
    """Replaces metrics by their average over all ranks at the end of each epoch.

    If Keras knows on every rank how many batches an epoch has, training metrics are weighted by
    these numbers; validation metrics have equal weights.

    Put it before callbacks that read metrics, such as `ReduceLROnPlateau` or `ModelCheckpoint`, so
    that these decide the same on every rank.
    """

    _steps_before = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Records the number of optimizer steps before the epoch."""
        self._steps_before = self._num_steps() or 0

    def _num_steps(self) -> int | None:
        # A callback that counts batches would make Keras convert logs in every step.
        optimizer = getattr(self.model, "optimizer", None)
        return None if optimizer is None else int(optimizer.iterations)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages `logs` in place, arrays by element; a job of one process keeps its metrics.

        Raises:
            ValueError: the ranks have different metrics.
            HorovodInternalError: a rank has another number of batches, is lost, or did not arrive
                in time. In a job without Horovod it is a `tf.errors.UnavailableError`.
        """
        control = current_job.get_control()
        if control is None or logs is None:
            return
        mine = {name: np.asarray(value, dtype=np.float64).tolist() for name, value in logs.items()}
        steps = self._num_steps()
        sync_point = (
            "the end of an epoch"
            if steps is None
            else f"the end of an epoch, after {steps - self._steps_before} optimizer steps"
        )
        message = {"metrics": mine, "batches": (self.params or {}).get("steps")}
        everyone = current_job.run_at(
            sync_point, type(self).__name__, control, lambda control: control.all_gather(message)
        )
        values = [with_names_of(list(mine), theirs["metrics"]) for theirs in everyone]
        numbers = [theirs["batches"] for theirs in everyone]
        for rank, theirs in enumerate(values):
            if sorted(theirs) != sorted(mine):
                raise ValueError(
                    f"metrics: rank {rank} has {sorted(theirs)}, rank {control.rank}"
                    f" {sorted(mine)}; every rank must compute the same"
                )
        for name in mine:
            weights = None if name.startswith("val_") or None in numbers else numbers
            average = np.average([theirs[name] for theirs in values], axis=0, weights=weights)
            logs[name] = average if average.ndim else float(average)
