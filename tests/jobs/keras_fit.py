"""`model.fit` under a plan, against `fit` of one process on the joint batches."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import keras
import models
import numpy as np
import tensorflow as tf
from fit_families import add_cases
from harness import FOLDER, RANK, SIZE, Cases, restart_engine, restart_horovod
from keras_models import (
    SHARD,
    STEPS,
    OddBatches,
    automatic,
    compiled,
    data,
    layers,
    own_model,
    plain_model,
    weights,
)

import tf_libra.keras

EPOCHS = 3
TUNING_STEPS = 14

cases = Cases()


# What one process fits alone: its model, and whether the last batch is a short one.
ALONE = {"plain": (plain_model, False), "short": (plain_model, True), "own": (own_model, False)}


def fit_alone(name: str) -> None:
    make, short = ALONE[name]
    model = compiled(make)
    model.fit(data(alone=True, short=short), epochs=EPOCHS, verbose=0)
    np.savez(FOLDER / f"alone.{name}.npz", **weights(model))


def fit(name: str, **options: Any) -> Any:
    """Saves the weights of a job of all ranks; `fit_alone` of the same name does those of one."""
    make, short = ALONE[name]
    ours = compiled(make, **options)
    fitting = tf_libra.keras.optimize(
        ours,
        tf_libra.strategies.Libra(threads=(1, 2)),
        max_tuning_steps=TUNING_STEPS,
        tuning=tf_libra.Tuning(max_seconds=1e6),
    )
    calls: list[int] = []
    traced: list[Any] = []
    train_step = ours.train_step
    ours.train_step = lambda data: train_step(traced.append(data) or data)
    history = ours.fit(
        data(alone=False, short=short),
        epochs=EPOCHS,
        verbose=0,
        validation_data=data(alone=True, seed=1),
        callbacks=[
            tf_libra.keras.AverageMetrics(),
            keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: calls.append(batch)
            ),
        ],
    )
    cases.save(**{f"ours/{name}": value for name, value in weights(ours).items()})
    return {
        "alone": name,
        "phase": str(fitting.phase),
        "plan": fitting.plan.to_json(),
        "explained": fitting.explain(),
        "history": {name: [float(v) for v in values] for name, values in history.history.items()},
        "calls": calls,
        "traces": len(traced),
    }


cases.add("plain", partial(fit, "plain"))
cases.add("short_batch", partial(fit, "short"))
cases.add("own_step", partial(fit, "own"))
cases.add("several_steps", partial(fit, "short", steps_per_execution=4))


@cases
def numbered_otherwise_on_one_rank() -> Any:
    alone = compiled(automatic)
    alone.fit(data(alone=True), epochs=EPOCHS, verbose=0)
    if RANK == 1:
        automatic()
    ours = compiled(automatic)
    fitting = tf_libra.keras.optimize(ours, "wfbp", max_tuning_steps=6)
    ours.fit(data(alone=False), epochs=EPOCHS, verbose=0)
    fitting.check_variables()
    both = {"ours": ours, "alone": alone}
    saved = {
        f"{who}/{i}": trainable_variable.numpy()
        for who, model in both.items()
        for i, trainable_variable in enumerate(model.trainable_variables)
    }
    cases.save(**saved)
    return {"phase": str(fitting.phase), "plan": fitting.plan.to_json()}


@cases
def twice() -> Any:
    """A second `fit` goes on under the plan; a second `compile` starts over."""
    model = compiled(plain_model)
    fitting = tf_libra.keras.optimize(
        model,
        "mg-wfbp",
        max_tuning_steps=TUNING_STEPS,
        tuning=tf_libra.Tuning(max_seconds=1e6),
        broadcast_variables=True,
    )
    phases = [str(fitting.phase), fitting.explain()]
    model.fit(data(alone=False), epochs=2, verbose=0)
    phases.append(str(fitting.phase))
    plan = fitting.plan
    model.fit(data(alone=False), epochs=1, verbose=0)
    is_same_plan = fitting.plan is plan
    model.compile(keras.optimizers.SGD(0.01), "mse")
    model.compile(
        keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.fit(data(alone=False), epochs=1, verbose=0)
    phases.append(str(fitting.phase))
    digest = float(sum(np.abs(value).sum() for value in weights(model).values()))
    return {"phases": phases, "kept": is_same_plan, "digest": digest}


@cases
def short_on_one_rank() -> Any:
    """The last batch of an execution, which is one graph if it is whole on every rank."""
    model = compiled(plain_model, steps_per_execution=2)
    tf_libra.keras.optimize(model, "syneasgd", max_tuning_steps=2)
    for is_short in (*[False] * 4, RANK == 0, False):
        model.fit(data(alone=False, short=is_short).skip(STEPS - 2), epochs=1, verbose=0)
    return float(sum(np.abs(value).sum() for value in weights(model).values()))


@cases
def replaced() -> Any:
    """`compile` and `optimize` again, and `compile` alone: what was before is closed."""
    logdir, open_files = FOLDER / "replaced", []
    model = compiled(plain_model)
    for optimizes in (True, True, False):
        if optimizes:
            tf_libra.keras.optimize(model, "syneasgd", logdir=logdir, max_tuning_steps=2)
        model.fit(data(alone=False), epochs=1, verbose=0)
        links = [os.readlink(fd.path) for fd in os.scandir("/proc/self/fd") if fd.is_symlink()]
        open_files.append(sum(link.startswith(str(logdir)) for link in links))
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return open_files


def save(alone: Any, ours: Any) -> None:
    cases.save(
        **{f"alone/{name}": value for name, value in weights(alone).items()},
        **{f"ours/{name}": value for name, value in weights(ours).items()},
    )


@cases
def on_batch() -> Any:
    """`train_on_batch` trains under the plan, too, and when nothing is tried out any more."""
    alone, ours = compiled(plain_model), compiled(plain_model)
    fitting = tf_libra.keras.optimize(ours, "syneasgd", max_tuning_steps=6)
    settled = [fitting.settled]
    for step in range(20):
        joint = models.batch(step, SIZE, "float32")
        share = models.part(joint, RANK, SIZE)
        # Without sample weights, Keras says None.
        weighted = {"sample_weight": np.full(SHARD, 0.5, "float32")} if step % 2 else {}
        alone.train_on_batch(
            *(array.numpy() for array in joint),
            **{name: np.tile(value, SIZE) for name, value in weighted.items()},
        )
        ours.train_on_batch(*(array.numpy() for array in share), **weighted)
        settled.append(fitting.settled)
    save(alone, ours)
    return settled


@cases
def before_compile() -> Any:
    """`optimize` waits for `compile`; a second `compile` after training starts over."""
    alone, ours = compiled(plain_model), plain_model()
    fitting = tf_libra.keras.optimize(
        ours, tf_libra.strategies.Wfbp(num_threads=2), max_tuning_steps=6
    )
    ours.set_weights(alone.get_weights())
    reported = []
    for seed in range(2):
        for model in (alone, ours):
            model.compile(
                keras.optimizers.Adam(0.01),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            )
            model.fit(data(model is alone, seed), epochs=2, verbose=0)
        reported.append([str(fitting.phase), fitting.settled, fitting.tuned is not None])
        ours.reset_metrics()  # which are of each rank's own data
        fitting.check_variables()
    fitting.close()
    save(alone, ours)
    return reported


@cases
def odd_batches() -> Any:
    """Several steps per call, of batches that are alike and of those that are not."""

    def make() -> Any:
        keras.utils.set_random_seed(3)
        model = OddBatches()
        model.compile(
            keras.optimizers.Adam(0.01),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=2,
        )
        return model

    def odd(alone: bool) -> tf.data.Dataset:
        def more(inputs: Any, labels: Any) -> Any:
            # As many numbers in a row as its label says: other sizes in every batch.
            rows = tf.RaggedTensor.from_row_lengths(
                tf.ones([tf.reduce_sum(labels)]) / 8, row_lengths=labels
            )
            few = tf.where(inputs > 1.0, inputs, 0.0)
            return {"dense": inputs, "sparse": tf.sparse.from_dense(few), "ragged": rows}, labels

        return data(alone).map(more)

    alone, ours = make(), make()
    alone.fit(odd(True), epochs=EPOCHS, verbose=0)
    fitting = tf_libra.keras.optimize(ours, "wfbp", max_tuning_steps=6)
    ours.fit(odd(False), epochs=EPOCHS, verbose=0)
    save(alone, ours)
    return fitting.settled


@cases
def broadcast() -> Any:
    """Every rank starts from the variables that rank 0 loaded; dropout stays rank-local."""

    def make() -> Any:
        dropout = keras.layers.Dropout(0.5, seed=100 + RANK, name="dropout")
        return keras.Sequential([keras.Input((models.FEATURES,)), dropout, *layers()], name="drop")

    model = compiled(make)
    weights_of_0 = [variable.numpy() + 1 for variable in model.trainable_variables]
    if RANK == 0:  # the other ranks have not even built their optimizers
        model.optimizer.build(model.trainable_variables)
        for variable, value in zip(model.trainable_variables, weights_of_0, strict=True):
            variable.assign(value)
        model.optimizer.iterations.assign(7)
    seeds = [v for v in model.variables if "seed" in v.name]
    before = [v.numpy().tolist() for v in seeds]
    callback = tf_libra.keras.BroadcastVariables()
    callback.set_model(model)
    callback.on_train_begin()
    same = [
        bool(np.array_equal(variable.numpy(), value))
        for variable, value in zip(model.trainable_variables, weights_of_0, strict=True)
    ]
    seeds_are_equal = [v.numpy().tolist() for v in seeds] == before
    tf_libra.keras.optimize(model, "syneasgd")
    model.fit(data(alone=False), epochs=1, verbose=0, callbacks=[callback])
    return {
        "same": same,
        "seeds": len(seeds),
        "kept": seeds_are_equal,
        "at": int(model.optimizer.iterations),
    }


@cases
def models_differ() -> None:
    """Ranks that have different models get an error before any variable is broadcast."""
    model = compiled(plain_model if RANK == 0 else own_model)
    callback = tf_libra.keras.BroadcastVariables()
    callback.set_model(model)
    callback.on_train_begin()


@cases
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


@cases
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


@cases
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


@cases
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


add_cases(cases)


@cases
def after_a_reset() -> None:
    """The last case: `fit` and `train_on_batch` go on in another job of the same ranks."""

    def train(model: Any, alone: bool) -> None:
        for _ in range(2):
            model.fit(data(alone), epochs=1, verbose=0)
            for inputs, labels in data(alone).take(2):
                model.train_on_batch(inputs, labels)
            if not alone:
                restart_horovod()

    plain, ours = compiled(plain_model), compiled(plain_model)
    train(plain, alone=True)
    tf_libra.keras.optimize(ours, "syneasgd", max_tuning_steps=TUNING_STEPS)
    train(ours, alone=False)
    saved = {f"alone/{name}": value for name, value in weights(plain).items()}
    cases.save(**saved, **{f"ours/{name}": value for name, value in weights(ours).items()})


if __name__ == "__main__":
    hvd.init()
    for reference in list(ALONE)[RANK::SIZE]:
        fit_alone(reference)
    cases.run()
