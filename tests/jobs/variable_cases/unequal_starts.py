"""Variables that differ before the first step, or before a new trace."""

from typing import Any

import horovod.tensorflow as hvd
import models
import tensorflow as tf
from harness import FOLDER, RANK

import tf_libra
from variable_cases.common import (
    BRIEFLY,
    LAST,
    STEPS,
    bits,
    cases,
    comparison,
    hand_written,
    own_seed,
    shard,
    train,
)


@cases
def unequal_starts() -> Any:
    model = hand_written()
    train(tf_libra.optimize(**BRIEFLY)(tf.function(model.step)))
    return comparison(model)


@cases
def unequal_starts_refused() -> Any:
    model = hand_written()
    train(tf_libra.optimize(broadcast_variables=False, **BRIEFLY)(tf.function(model.step)))


@cases
def equal_starts() -> Any:
    model = hand_written(seed=1)
    train(tf_libra.optimize(broadcast_variables=False, **BRIEFLY)(tf.function(model.step)))
    return comparison(model)


@cases
def broadcast_by_horovod_after_the_first_batch() -> Any:
    model = hand_written()
    step = tf_libra.optimize(**BRIEFLY)(tf.function(model.step))
    for number in range(STEPS):
        step(*shard(number))
        if number == 0:
            hvd.broadcast_variables(model.variables, root_rank=0)
    return comparison(model)


@cases
def checkpoint_restored_on_rank_0_alone() -> Any:
    prefix = str(FOLDER / f"checkpoint.{RANK}")
    saved = hand_written(seed=1)
    path = tf.train.Checkpoint(variables=saved.variables).write(prefix)
    model = hand_written(seed=9)
    if RANK == 0:
        tf.train.Checkpoint(variables=model.variables).read(path)
    train(tf_libra.optimize(**BRIEFLY)(tf.function(model.step)))
    return comparison(model)


class Restored(models.HandWritten):
    """Computes another gradient on request, hence has a plan of its own."""

    def __init__(self) -> None:
        super().__init__("float32", "sgd")
        self.extra = tf.Variable(tf.fill([models.CLASSES], 0.1 * own_seed()), name="extra")

    def step(self, inputs: Any, labels: Any, more: bool = False) -> Any:
        chosen = [*self.variables, self.extra] if more else self.variables
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels)
            if more:
                loss += tf.reduce_sum(self.extra**2)
        for variable, gradient in zip(chosen, tape.gradient(loss, chosen), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss


def changed_before_a_new_trace(**options: Any) -> Any:
    model = Restored()
    step = tf_libra.optimize(**BRIEFLY, **options)(tf.function(model.step))
    train(step)
    if RANK == LAST:
        model.variables[0].assign_add(tf.ones_like(model.variables[0]))
    for number in range(2):
        step(*shard(number), more=True)
    step.check_variables()
    return bits([*model.variables, model.extra])


@cases
def changed_before_a_new_trace_is_refused() -> Any:
    return changed_before_a_new_trace()


@cases
def changed_before_a_new_trace_is_copied() -> Any:
    return changed_before_a_new_trace(broadcast_variables=True)


@cases
def layer_that_is_thawed() -> Any:
    """Only the new variable is copied: it is the first that differs."""
    model = Restored()
    step = tf_libra.optimize(**BRIEFLY)(tf.function(model.step))
    train(step)
    for number in range(2):
        step(*shard(number), more=True)
    step.check_variables()
    return bits([*model.variables, model.extra])


@cases
def learning_rate_of_each_rank() -> Any:
    """The learning rate of each rank flows into the weights without being averaged."""
    model = hand_written(seed=1)
    rate = tf.Variable(0.1 * own_seed(), trainable=False, name="rate")

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.loss(inputs, labels)
        for variable, gradient in zip(
            model.variables, tape.gradient(loss, model.variables), strict=True
        ):
            variable.assign_sub(rate * gradient)

    train(tf_libra.optimize(**BRIEFLY)(tf.function(step)))
    return [float(rate), bits(model.variables)]
