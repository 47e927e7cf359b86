"""Callbacks for data-parallel `fit`."""

from typing import Any

import keras
import numpy as np

from tf_libra.capture.automatic_names import renames_to_first, with_names_of
from tf_libra.capture.variables import is_random_state, plain
from tf_libra.coordination import current_job, horovod_job
from tf_libra.coordination.consistency_check import first_difference
from tf_libra.keras import multi_worker_fit


class BroadcastVariables(keras.callbacks.Callback):
    """Before training, copies all of rank 0's variables, model's and optimizer's, to all ranks.

    For weights that were loaded on rank 0 alone. `optimize(..., broadcast_variables=True)` does
    the same before the first step after `compile`; this does it before every `fit`. States of
    random number generators stay each rank's own, so that dropout differs. Variables of a
    `MultiWorkerMirroredStrategy` are left to that, which has made them equal.
    """

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Broadcasts, by Horovod.

        Raises:
            ValueError: the model has no variables yet, or the ranks' variables are not alike.
            HorovodInternalError: another rank is in a step, or gone.
        """
        model, optimizer = self.model, self.model.optimizer
        if multi_worker_fit.is_of_workers(model):
            return
        if not model.built:
            raise ValueError(
                f"model {model.name!r} has no variables yet that could be broadcast: give it a"
                " keras.Input, or call build, before fit"
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
        current_job.meet("the beginning of fit", type(self).__name__)
        everyone = horovod_job.exchange_json({"paths": paths, "kinds": kinds})
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
            raise ValueError(f"the ranks do not agree, nothing was broadcast: {difference}")
        horovod_job.broadcast_variables([plain(variable) for variable in variables])
        _use_statistics(model)


def _use_statistics(model: keras.Model) -> None:
    """Let `Normalization` layers compute with the statistics that their variables have now."""
    layers = [one for one in model._flatten_layers() if isinstance(one, keras.layers.Normalization)]
    for layer in layers:
        layer.finalize_state()
    if layers:  # traced before, they hold the statistics as constants
        model.predict_function = model.test_function = None


class AverageMetrics(keras.callbacks.Callback):
    """At the end of each epoch, replaces metrics by their average over all ranks.

    Put it before callbacks that read metrics, such as `ReduceLROnPlateau` or `ModelCheckpoint`, so
    that they decide alike everywhere.
    """

    _steps_before = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note the number of optimizer steps before the epoch."""
        self._steps_before = self._num_steps() or 0

    def _num_steps(self) -> int | None:
        # Keras converts logs in every step if a callback counts batches.
        optimizer = getattr(self.model, "optimizer", None)
        return None if optimizer is None else int(optimizer.iterations)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages `logs` in place, arrays by element; leaves them where this process is alone.

        Raises:
            ValueError: the ranks do not have the same metrics.
            HorovodInternalError: a rank's epoch has not ended, as it has other numbers of batches;
                or a rank is gone, or did not arrive in time. Under a
                `MultiWorkerMirroredStrategy` it is a `tf.errors.UnavailableError`.
        """
        control = current_job.get_control()
        if control is None or logs is None:
            return
        mine = {name: np.asarray(value, dtype=np.float64).tolist() for name, value in logs.items()}
        steps = self._num_steps()
        place = (
            "the end of an epoch"
            if steps is None
            else f"the end of an epoch, after {steps - self._steps_before} optimizer steps"
        )
        everyone = current_job.run_at(
            place, type(self).__name__, control, lambda control: control.all_gather(mine)
        )
        values = [with_names_of(list(mine), theirs) for theirs in everyone]
        for rank, theirs in enumerate(values):
            if sorted(theirs) != sorted(mine):
                raise ValueError(
                    f"metrics: rank {rank} has {sorted(theirs)}, rank {control.rank}"
                    f" {sorted(mine)}; every rank must compute the same"
                )
        for name in mine:
            average = np.mean([theirs[name] for theirs in values], axis=0)
            logs[name] = average if average.ndim else float(average)
