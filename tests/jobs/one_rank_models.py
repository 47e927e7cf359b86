"""Models whose weights one rank trains like all ranks, or otherwise."""

import dataclasses

import harness
import staged  # noqa: F401 (lets modules of the tests be found)
import tensorflow as tf
from one_rank_steps import SAMPLES

from tests.model_parallel import models
from tests.model_parallel.trained_model import from_keras


def without_metric():
    return dataclasses.replace(models.mlp(), metric=None)


def failing_in_a_step():
    """Looks up a row per example, of which there are enough for one rank alone."""
    trained = without_metric()
    rows = tf.Variable(tf.ones([SAMPLES // harness.SIZE, 1]), trainable=False)

    def call(images):
        logits = trained.call(images)
        return logits * tf.gather(rows, tf.range(tf.shape(logits)[0]))

    return dataclasses.replace(trained, call=call)


def influenced():
    """A model whose weights depend on a metric, of which every rank has its own."""
    trained = models.mlp()

    def loss(labels, logits):
        return trained.loss(labels, logits) + 1e-3 * trained.metric.result() * tf.norm(logits)

    return dataclasses.replace(trained, loss=loss)


def summed():
    """A model whose loss is no mean, so that its gradients grow with the batch."""
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    return dataclasses.replace(without_metric(), loss=loss)


def varied():
    """A model that normalizes batches, draws, and calls Python."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input([8, 8, 1]),
            layers.Flatten(),
            layers.Dense(32),
            layers.BatchNormalization(),
            layers.Dropout(0.1, seed=3),
            layers.Dense(10),
        ]
    )
    trained = from_keras(model, tf.keras.optimizers.SGD(0.1))

    def call(images):
        tf.py_function(abs, [tf.constant(1.0)], tf.float32)
        return model(images, training=True)

    return dataclasses.replace(trained, call=call)
