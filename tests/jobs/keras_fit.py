"""`model.fit` under a plan, against `fit` of one process on the joint batches."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import keras
import models
import numpy as np
import tensorflow as tf
from fit_failures import add_cases
from harness import FOLDER, RANK, SIZE, Cases, restart_horovod
from keras_models import (
    SHARD,
    STEPS,
    References,
    automatic,
    compiled,
    data,
    layers,
    odd_data,
    odd_model,
    own_model,
    plain_model,
    weights,
)

import tf_libra.keras

EPOCHS = 3
TUNING_STEPS = 14

cases, references = Cases(), References()


def fit_alone(make: Callable[[], Any], short: bool = False) -> Any:
    """Fits in one process, eagerly, since a small model's tracing takes longest."""
    model = compiled(make, run_eagerly=True)
    model.fit(data(alone=True, short=short), epochs=EPOCHS, verbose=0)
    return model


references.add(partial(fit_alone, plain_model), "plain")
references.add(partial(fit_alone, plain_model, short=True), "short_batch", "several_steps")
references.add(partial(fit_alone, own_model), "own_step")
references.add(partial(fit_alone, automatic), "numbered_otherwise_on_one_rank")


def fit(make: Callable[[], Any], short: bool = False, **options: Any) -> Any:
    """Saves the weights of a job of all ranks; the last batch may be a short one."""
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
    cases.save(**weights(ours))
    return {
        "phase": str(fitting.phase),
        "plan": fitting.plan.to_json(),
        "explained": fitting.explain(),
        "history": {name: [float(v) for v in values] for name, values in history.history.items()},
        "calls": calls,
        "traces": len(traced),
    }


cases.add("plain", partial(fit, plain_model))
cases.add("short_batch", partial(fit, plain_model, short=True))
cases.add("own_step", partial(fit, own_model))
cases.add("several_steps", partial(fit, plain_model, short=True, steps_per_execution=4))


@cases
def numbered_otherwise_on_one_rank() -> Any:
    if RANK == 1:
        automatic()
    ours = compiled(automatic)
    fitting = tf_libra.keras.optimize(ours, "wfbp", max_tuning_steps=6)
    ours.fit(data(alone=False), epochs=EPOCHS, verbose=0)
    fitting.check_variables()
    cases.save(**weights(ours))
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
def error_feedback() -> Any:
    """Fits in half precision; others go on from a checkpoint, with rounding errors and without."""

    def prepared() -> tuple[Any, Any, tf.train.Checkpoint]:
        model = compiled(plain_model)
        model.optimizer.build(model.trainable_variables)
        plan = models.plan_of(model.trainable_variables, SIZE, [0, 2, 6], [1, 2])
        plan = dataclasses.replace(plan, wire_dtype="bfloat16")
        fitting = tf_libra.keras.optimize(
            model, plan=plan, wire_dtype="bfloat16", error_feedback=True
        )
        objects = {"model": model, "optimizer": model.optimizer}
        return model, fitting, tf.train.Checkpoint(feedback=fitting.error_feedback, **objects)

    def fitted(model: Any) -> list[bytes]:
        model.fit(data(alone=False, seed=1), epochs=1, verbose=0)
        return [value.tobytes() for value in weights(model).values()]

    first, fitting, checkpoint = prepared()
    first.fit(data(alone=False), epochs=1, verbose=0)
    path = checkpoint.write(str(FOLDER / f"feedback-{RANK}"))
    expected = fitted(first)
    cases.save(**weights(first))
    same = []
    for has_feedback in (True, False):
        model, _, checkpoint = prepared()
        checkpoint.read(path).expect_partial()  # of metrics, which `fit` makes
        if not has_feedback:
            checkpoint.feedback.deserialize(b"")
        same.append(fitted(model) == expected)
    return {"same": same, "explained": fitting.explain()}


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


def train_on_batches(model: Any, rank: int, size: int) -> Iterator[None]:
    """Trains on batches of ranks, every other with weights; without them, Keras says None."""
    for step in range(20):
        batch = models.part(models.batch(step, SIZE, "float32"), rank, size)
        count = SHARD * SIZE // size
        weighted = {"sample_weight": np.full(count, 0.5, "float32")} if step % 2 else {}
        model.train_on_batch(*(array.numpy() for array in batch), **weighted)
        yield


def on_batch_alone() -> Any:
    model = compiled(plain_model, run_eagerly=True)
    list(train_on_batches(model, 0, 1))
    return model


references.add(on_batch_alone, "on_batch")


@cases
def on_batch() -> Any:
    """`train_on_batch` trains under the plan, too, and when nothing is tried out any more."""
    ours = compiled(plain_model)
    fitting = tf_libra.keras.optimize(ours, "syneasgd", max_tuning_steps=6)
    settled = [fitting.settled]
    settled += [fitting.settled for _ in train_on_batches(ours, RANK, SIZE)]
    cases.save(**weights(ours))
    return settled


def compile_and_fit(model: Any, alone: bool, seed: int, **options: Any) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, **options)
    model.fit(data(alone, seed), epochs=2, verbose=0)


def before_compile_alone() -> Any:
    model = compiled(plain_model)
    for seed in range(2):
        compile_and_fit(model, True, seed, run_eagerly=True)
    return model


references.add(before_compile_alone, "before_compile")


@cases
def before_compile() -> Any:
    """`optimize` waits for `compile`; a second `compile` after training starts over."""
    keras.utils.set_random_seed(3)
    ours = plain_model()
    fitting = tf_libra.keras.optimize(
        ours, tf_libra.strategies.Wfbp(num_threads=2), max_tuning_steps=6
    )
    reported = []
    for seed in range(2):
        compile_and_fit(ours, False, seed)
        reported.append([str(fitting.phase), fitting.settled, fitting.tuned is not None])
        ours.reset_metrics()  # which are of each rank's own data
        fitting.check_variables()
    fitting.close()
    cases.save(**weights(ours))
    return reported


def odd_batches_alone() -> Any:
    model = odd_model(run_eagerly=True)
    model.fit(odd_data(alone=True), epochs=EPOCHS, verbose=0)
    return model


references.add(odd_batches_alone, "odd_batches")


@cases
def odd_batches() -> Any:
    """Several steps per call, of batches that are alike and of those that are not."""
    ours = odd_model(steps_per_execution=2)
    fitting = tf_libra.keras.optimize(ours, "wfbp", max_tuning_steps=6)
    ours.fit(odd_data(alone=False), epochs=EPOCHS, verbose=0)
    cases.save(**weights(ours))
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


add_cases(cases)


def fit_twice(model: Any, alone: bool) -> Any:
    for _ in range(2):
        model.fit(data(alone), epochs=1, verbose=0)
        for inputs, labels in data(alone).take(2):
            model.train_on_batch(inputs, labels)
        if not alone:
            restart_horovod()
    return model


references.add(lambda: fit_twice(compiled(plain_model, run_eagerly=True), True), "after_a_reset")


@cases
def after_a_reset() -> None:
    """The last case: `fit` and `train_on_batch` go on in another job of the same ranks."""
    ours = compiled(plain_model)
    tf_libra.keras.optimize(ours, "syneasgd", max_tuning_steps=TUNING_STEPS)
    cases.save(**weights(fit_twice(ours, alone=False)))


if __name__ == "__main__":
    hvd.init()
    references.run()
    cases.run()
