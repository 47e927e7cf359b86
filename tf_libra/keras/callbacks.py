"""Callbacks for data-parallel `fit`."""

from typing import Any

import keras

from tf_libra.runtime import engine as engine_lib
from tf_libra.runtime import horovod


class BroadcastVariables(keras.callbacks.Callback):
    """Before training, copies all of rank 0's variables, model's and optimizer's, to all ranks.

    For weights that were loaded on rank 0 alone. `optimize(..., broadcast_variables=True)` does
    the same before the first step after `compile`; this does it before every `fit`.
    """

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Broadcasts, by Horovod."""
        variables = list(self.model.variables)
        if self.model.optimizer is not None:
            known = {id(variable) for variable in variables}
            variables += [v for v in self.model.optimizer.variables if id(v) not in known]
        horovod.broadcast_variables([variable.value for variable in variables])


class AverageMetrics(keras.callbacks.Callback):
    """At the end of each epoch, replaces metrics by their average over all ranks.

    Put it before callbacks that read metrics, such as `ReduceLROnPlateau` or `ModelCheckpoint`, so
    that they decide alike everywhere.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages `logs` in place; leaves them where this process is alone.

        Raises:
            ValueError: the ranks do not have the same metrics.
            EngineError: a rank is gone, or did not arrive in time.
        """
        engine = engine_lib.running()
        if engine is None or logs is None:
            return
        mine = {name: float(value) for name, value in logs.items()}
        everyone = engine.all_gather(mine)
        for rank, theirs in enumerate(everyone):
            if theirs.keys() != mine.keys():
                raise ValueError(
                    f"metrics: rank {rank} has {sorted(theirs)}, rank {engine.rank}"
                    f" {sorted(mine)}; every rank must compute the same"
                )
        for name in mine:
            logs[name] = sum(theirs[name] for theirs in everyone) / engine.world_size
