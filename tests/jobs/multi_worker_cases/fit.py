"""Keras `fit` and iterators under the strategy."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import models
import numpy as np
import tensorflow as tf
import tf_keras
from harness import SIZE

import tf_libra
import tf_libra.keras
from multi_worker_cases.common import (
    STRATEGY,
    SUM,
    TUNING,
    cases,
    dense,
    describe,
    save_both,
    scale_of,
)

FITTED = 3 * models.SHARD + 1  # samples of each worker in an epoch: the last batch is short


def joint_batches() -> Any:
    """Returns the batches of all workers, to be divided among them."""
    joint = tf.data.Dataset.from_tensor_slices(models.batch(0, SIZE, "float32", FITTED))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return joint.batch(SIZE * models.SHARD).with_options(options)


@cases
def iterator() -> Any:
    """The commonest loop: the step takes an iterator, and the last batch is short."""

    def weights(step: Callable[..., Any]) -> Any:
        tf.keras.utils.set_random_seed(3)
        with STRATEGY.scope():
            replica, variables = dense()
        dataset = STRATEGY.experimental_distribute_dataset(joint_batches())

        def train_step(batches: Any) -> Any:
            losses = STRATEGY.run(replica, args=next(batches))
            return STRATEGY.reduce(SUM, losses, axis=None)

        call, count = step(train_step), 0
        for _ in range(3):
            batches = iter(dataset)
            while True:
                try:
                    call(batches)
                except tf.errors.OutOfRangeError:
                    break
                count += 1
        return {f"{i}": v.numpy() for i, v in enumerate(variables)}, count, call

    plain, plain_count, _ = weights(tf.function)
    ours, count, step = weights(
        lambda function: tf_libra.optimize("wfbp", **TUNING)(tf.function(function))
    )
    save_both(plain, ours)
    return describe(step) | {"counts": [plain_count, count]}


EPOCHS = 3


def fitted(make_model: Any, fit: Callable[[Any, Any], Any]) -> tuple[dict[str, Any], Any, Any]:
    """Weights after three epochs of a model, its history, and what `fit` has returned."""
    tf.keras.utils.set_random_seed(3)
    with STRATEGY.scope():
        model = make_model()
    found = fit(model, joint_batches())
    return {f"{i}": np.asarray(v) for i, v in enumerate(model.trainable_variables)}, model, found


def layers_of(library: Any, **options: Any) -> Any:
    """Three layers, compiled."""
    model = library.Sequential(
        [
            library.layers.InputLayer((models.FEATURES,)),
            library.layers.Dense(16, activation="tanh"),
            library.layers.Dense(9, activation="tanh"),
            library.layers.Dense(models.CLASSES),
        ]
    )
    model.compile(
        library.optimizers.Adam(0.01),
        library.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **options,
    )
    return model


def plain_epochs(model: Any, data: Any) -> None:
    """Trains as `fit` does, without scalars' mean, which Keras 3 lacks for several workers."""
    dataset = STRATEGY.experimental_distribute_dataset(data)

    @tf.function
    def step(batches: Any) -> Any:
        return STRATEGY.run(model.train_step, args=(next(batches),))

    for _ in range(EPOCHS):
        batches = iter(dataset)
        for _ in range(-(-FITTED // models.SHARD)):
            step(batches)


@functools.cache
def plain_fit() -> dict[str, Any]:
    """Weights after as many epochs under the strategy alone."""
    return fitted(lambda: layers_of(keras), plain_epochs)[0]


def fit_against_plain(**options: Any) -> Any:
    plain = plain_fit()

    def ours(model: Any, data: Any) -> Any:
        fitting = tf_libra.keras.optimize(model, "wfbp", max_tuning_steps=4)
        return fitting, model.fit(data, epochs=EPOCHS, validation_data=data, verbose=0)

    weights, model, (fitting, history) = fitted(lambda: layers_of(keras, **options), ours)
    inputs, labels = models.batch(0, SIZE, "float32", FITTED)
    evaluated = float(models.cross_entropy(labels, model(inputs)))
    save_both(plain, weights)
    return describe(fitting) | {"history": history.history, "evaluated": evaluated}


@cases
def keras_fit() -> Any:
    return fit_against_plain()


@cases
def keras_several_steps() -> Any:
    return fit_against_plain(steps_per_execution=2)


@cases
def tf_keras_fit() -> Any:
    """Its training function is a `tf.function`, over which the line goes."""

    def fit(model: Any, data: Any) -> Any:
        return model.fit(data, epochs=EPOCHS, verbose=0)

    def ours(model: Any, data: Any) -> Any:
        step = tf_libra.optimize("wfbp", progress=False, max_tuning_steps=4)(
            model.make_train_function()
        )
        model.train_function = step
        return step, fit(model, data)

    plain, _, _ = fitted(lambda: layers_of(tf_keras), fit)
    weights, _, (step, history) = fitted(lambda: layers_of(tf_keras), ours)
    save_both(plain, weights)
    return describe(step) | {"history": history.history}


@cases
def overflow_of_one_worker_in_fit() -> Any:
    tf.keras.utils.set_random_seed(3)
    with STRATEGY.scope():
        model = layers_of(keras)
        inner = keras.optimizers.SGD(0.1)
        model.optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0)
        model.compile(model.optimizer, model.loss)
    inputs, labels = models.batch(0, SIZE, "float32", FITTED)
    inputs = inputs.numpy()
    inputs[0] = np.inf  # of one worker, in the first step of each epoch
    joint = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(SIZE * models.SHARD)
    options = joint_batches().options()
    fitting = tf_libra.keras.optimize(model, "wfbp", max_tuning_steps=4)
    model.fit(joint.with_options(options), epochs=EPOCHS, verbose=0)
    weights = {f"{i}": np.asarray(v) for i, v in enumerate(model.trainable_variables)}
    save_both(weights, weights)
    return describe(fitting) | scale_of(model.optimizer)
