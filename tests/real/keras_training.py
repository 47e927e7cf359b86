"""Scripts that train by Keras or count metrics in the step."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.real.dense_network import CLASSES, FEATURES, cross_entropy, rows
from tests.real.running import By, Scripts, use_float64

SCRIPTS = Scripts()


def averaging(by: By) -> type[keras.Model]:
    """A model that `fit` trains by what the script's author would do for Horovod."""

    class Averaging(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = by.average(tape.gradient(loss, self.trainable_variables))
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    return Averaging


@SCRIPTS.like("horovod")
def frozen_then_unfrozen(by: By) -> Any:
    """Transfer learning: the head first, then `compile` again and all of it, by `fit`."""
    use_float64()
    base = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(8), layers.BatchNormalization(), layers.ReLU()]
    )
    inputs = keras.Input((FEATURES,))
    model = averaging(by)(inputs, layers.Dense(CLASSES)(base(inputs)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    random = np.random.default_rng(1)
    arrays = random.normal(size=(32, FEATURES)), random.integers(0, CLASSES, 32)
    for base.trainable in (False, True):
        model.compile(keras.optimizers.Adam(0.01), loss)
        model.optimizer.build(model.trainable_variables)
        by.fit(model, arrays, batch=4)
    return model.trainable_variables


@SCRIPTS.like("horovod")
def metrics_in_the_step(by: By) -> Any:
    """Metrics are updated in the step, so that each rank has its own; decorated twice."""
    use_float64()
    model = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(8, "tanh"), layers.Dense(CLASSES)]
    )
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    train_loss = keras.metrics.Mean()
    accuracy = keras.metrics.SparseCategoricalAccuracy()

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            out = model(x, training=True)
            loss = cross_entropy(y, out)
        gradients = by.average(tape.gradient(loss, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        train_loss(loss)
        accuracy(y, out)

    for number, (x, y) in enumerate(by.batches(10, rows)):
        if number % 5 == 0:
            train_step = by.optimize()(step)
        train_step(x, y)
    assert 0 <= float(accuracy.result()) <= 1
    for run in by.steps:  # nothing else of the step differs
        run.optimized.check_variables()
    return model.trainable_variables


@SCRIPTS.like("horovod")
def batch_normalization_by_fit(by: By) -> Any:
    """Normalization and metrics under `fit`, decorated twice; then a second `compile`."""
    use_float64()
    inputs = keras.Input((FEATURES,))
    x = layers.BatchNormalization()(layers.Dense(8, use_bias=False)(inputs))
    model = averaging(by)(inputs, layers.Dense(CLASSES)(layers.ReLU()(x)))
    random = np.random.default_rng(1)
    arrays = random.normal(size=(32, FEATURES)), random.integers(0, CLASSES, 32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for rate in (0.1, 0.05):
        model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss)
        model.optimizer.build(model.trainable_variables)
        by.fit(model, arrays, batch=4)
    return model.trainable_variables


@SCRIPTS
def train_on_batch(by: By) -> Any:
    """Past the step in which the plan is settled, with a scheduler in between."""
    use_float64()
    model = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(8, "tanh"), layers.Dense(CLASSES)]
    )
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    by.remember(model.trainable_variables)
    fitting = by.keras(model)
    for number, (x, y) in enumerate(by.batches(14, rows)):
        if number == 9:
            model.optimizer.learning_rate = 0.05
        if fitting is not None:
            fitting.count()
        model.train_on_batch(x, y)
    return model.trainable_variables
