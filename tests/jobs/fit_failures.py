"""Cases of `fit` that fail on all ranks, for `keras_fit.py`: models, metrics or data differ."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
from harness import RANK, SIZE, Cases, restart_engine
from keras_models import STEPS, compiled, data, layers, own_model, plain_model

import tf_libra.keras


def models_differ() -> None:
    """Ranks that have different models get an error before any variable is broadcast."""
    model = compiled(plain_model if RANK == 0 else own_model)
    callback = tf_libra.keras.BroadcastVariables()
    callback.set_model(model)
    callback.on_train_begin()


def not_built() -> None:
    """A model without variables cannot be broadcast."""
    model = compiled(lambda: keras.Sequential(layers(), name="lazy"))
    callback = tf_libra.keras.BroadcastVariables()
    callback.set_model(model)
    callback.on_train_begin()


class Rank(keras.callbacks.Callback):
    """Adds a metric on rank 1 alone."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if RANK == 1 and logs is not None:
            logs["mine"] = 1.0


def metrics_differ() -> None:
    """Ranks that have different metrics get an error."""
    model = compiled(plain_model)
    tf_libra.keras.optimize(model, "syneasgd")
    callbacks = [Rank(), tf_libra.keras.AverageMetrics()]
    model.fit(data(alone=False), epochs=1, verbose=0, callbacks=callbacks)


def attempt(call: Callable[[], Any]) -> list[str]:
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    finally:
        restart_engine()
    return []


def trained(tuning_steps: int) -> Any:
    model = compiled(plain_model)
    tf_libra.keras.optimize(
        model,
        tf_libra.strategies.Libra(threads=(1, 2)),
        max_tuning_steps=tuning_steps,
        timeout_seconds=60.0,
    )
    return model


def fewer_batches() -> Any:
    """One rank has a batch less than the other: while tuning, and under a plan."""
    found = {}
    for rank in range(SIZE):
        for phase, tuning_steps in (("tuning", 60), ("plan", 4)):
            model = trained(tuning_steps)
            batches = data(alone=False).take(STEPS - 1 if rank == RANK else STEPS)
            batches = batches.filter(lambda *_: True)  # Keras does not know their number
            average = tf_libra.keras.AverageMetrics()
            fit = partial(model.fit, batches, epochs=2, verbose=0, callbacks=[average])
            found[f"{rank} {phase}"] = attempt(fit)
    return found


def one_rank_broadcasts() -> Any:
    """One rank begins `fit` again, which broadcasts, while the other still trains."""
    found = {}
    for rank in range(SIZE):
        model = trained(60)
        batches = data(alone=False)
        model.fit(batches, epochs=1, verbose=0)
        callback = tf_libra.keras.BroadcastVariables()
        callback.set_model(model)
        train = partial(model.fit, batches, epochs=1, verbose=0)
        found[str(rank)] = attempt(callback.on_train_begin if rank == RANK else train)
    return found


def add_cases(cases: Cases) -> None:
    for case in (models_differ, not_built, metrics_differ, fewer_batches, one_rank_broadcasts):
        cases(case)
