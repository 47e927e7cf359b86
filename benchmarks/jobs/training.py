"""Training in the workers of several benchmarks: one model, one batch, one optimizer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from benchmarks import models
from benchmarks.jobs.job import Task
from benchmarks.jobs.settings import LEARNING_RATE, set_up

Exchange = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True)
class Training:
    """A model in training.

    Attributes:
        batch: this rank's inputs and labels.
        num_parameters: of the model.
        num_bytes: of its gradients.
        step: from what becomes of gradients before they are applied to a training step, a
            `tf.function` of inputs and labels that returns the loss.
    """

    batch: tuple[Any, Any]
    num_parameters: int
    num_bytes: int
    step: Callable[[Exchange], Any]


def begin(job: Task) -> Training:
    """Sets up TensorFlow and Horovod as a job says, and makes its model."""
    set_up(job)
    hvd.init()
    return trained(job)


def trained(job: Task) -> Training:
    """Makes a job's model, with its optimizer and its batch."""
    # The same weights on every rank.
    tf.keras.utils.set_random_seed(job.seed)
    model, inputs, labels, loss = models.build(job.model)
    optimizer = tf.keras.optimizers.SGD(LEARNING_RATE)
    optimizer.build(model.trainable_variables)
    batch = tf.nest.map_structure(tf.convert_to_tensor, (inputs, labels))

    def training_step(exchange: Exchange) -> Any:
        @tf.function
        def step(inputs: Any, labels: Any) -> tf.Tensor:
            with tf.GradientTape() as tape:
                value = tf.reduce_mean(loss(labels, model(inputs, training=True)))
            gradients = tape.gradient(value, model.trainable_variables)
            optimizer.apply(exchange(gradients), model.trainable_variables)
            return value

        return step

    variables = model.trainable_variables
    num_bytes = sum(int(np.prod(v.shape)) * tf.as_dtype(v.dtype).size for v in variables)
    return Training(batch, model.count_params(), num_bytes, training_step)
