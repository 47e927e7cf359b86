"""Training in the workers of several benchmarks: one model, one batch, one optimizer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import models
from benchmarks.jobs.job import Task
from benchmarks.jobs.ranks import Ranks, join
from benchmarks.jobs.settings import make_optimizer, set_up
from tf_libra.variable_sync.owned_slots import held_bytes

Exchange = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True)
class Training:
    """A model in training.

    Attributes:
        ranks: of the job.
        batch: this rank's inputs and labels.
        num_parameters: of the model.
        num_bytes: of its gradients.
        optimizer_bytes: returns the bytes of the optimizer's variables that this rank holds.
        step: from what becomes of gradients before they are applied to a training step, a
            `tf.function` of inputs and labels that returns the loss.
    """

    ranks: Ranks
    batch: tuple[Any, Any]
    num_parameters: int
    num_bytes: int
    optimizer_bytes: Callable[[], int]
    step: Callable[[Exchange], Any]


def begin(job: Task) -> Training:
    """Sets up TensorFlow as a job says, joins the other ranks, and makes the job's model."""
    set_up(job)
    return trained(job, join())


def trained(job: Task, ranks: Ranks) -> Training:
    """Makes a job's model, with its optimizer and its batch."""
    # The same weights on every rank.
    tf.keras.utils.set_random_seed(job.seed)
    model, inputs, labels, loss = models.build(job.model)
    optimizer = make_optimizer(job)
    optimizer.build(model.trainable_variables)
    batch = tf.nest.map_structure(
        lambda part: tf.concat([part] * job.batch_factor, axis=0), (inputs, labels)
    )

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

    def optimizer_bytes() -> int:
        return sum(held_bytes(variable.value) for variable in optimizer.variables)

    return Training(ranks, batch, model.count_params(), num_bytes, optimizer_bytes, training_step)
