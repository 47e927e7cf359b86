"""Steps that the script writes: clipped, summed, scaled, with tables and layers of Keras."""

from typing import Any
from unittest import mock

import models
import numpy as np
import tensorflow as tf
from harness import FOLDER, RANK, SIZE

import tf_libra
import tf_libra.keras
from multi_worker_cases.common import (
    MEAN,
    STEPS,
    STRATEGY,
    SUM,
    TUNING,
    Dense,
    Replica,
    against_plain,
    cases,
    data,
    dense,
    describe,
    mean_loss,
    plainly,
    save_both,
    scaling,
    whole_step,
)
from tf_libra.runtime import session_registry


@cases
def hand_written() -> Any:
    return against_plain(dense, steps=18, max_tuning_steps=14)


@cases
def by_auto() -> Any:
    """Tunes data parallelism, with the whole budget, and leaves all other families out."""
    strategy = tf_libra.strategies.Auto(threads=(1,), streams=(1,))
    session = session_registry.TuningSession
    with mock.patch.object(session_registry, "TuningSession", wraps=session) as made:
        found = against_plain(dense, steps=18, strategy=strategy, max_tuning_steps=8)
    options = made.call_args.args[2]
    return found | {"num_tuning_steps": options.num_tuning_steps}


@cases
def under_a_given_plan() -> Any:
    plan = models.plan_of(models.HandWritten("float32", "sgd").variables, SIZE, [0, 2, 6], [1, 3])
    path = FOLDER / f"given.{RANK}.json"
    path.write_text(plan.to_json())
    return against_plain(dense, plan=path)


@cases
def called_in_the_scope() -> Any:
    plain, _ = plainly(dense, STEPS)
    tf.keras.utils.set_random_seed(3)
    with STRATEGY.scope():
        replica, variables = dense()
        step = tf_libra.optimize("wfbp", **TUNING)(tf.function(whole_step(replica)))
        for number in range(STEPS):
            step(*data(number))
    save_both(plain, {f"{i}": v.numpy() for i, v in enumerate(variables)})
    return describe(step)


def clipped() -> Replica:
    """Clips by the norm of this worker's gradients, before they are summed."""
    model = Dense(tf.keras.optimizers.SGD(0.1, momentum=0.9))

    def step(inputs: Any, labels: Any) -> Any:
        loss, gradients = model.gradients(inputs, labels)
        model.apply(tf.clip_by_global_norm(gradients, 0.05)[0])
        return loss

    return step, model.variables


def clipped_after() -> Replica:
    """Clips by the norm of the sum, which the script itself all-reduces."""
    model = Dense(None)

    def step(inputs: Any, labels: Any) -> Any:
        loss, gradients = model.gradients(inputs, labels)
        context = tf.distribute.get_replica_context()
        summed = context.all_reduce(SUM, gradients)
        context.merge_call(model.descend, args=(tf.clip_by_global_norm(summed, 0.05)[0],))
        return loss

    return step, model.variables


def averaged() -> Replica:
    """With the mean over workers."""
    model = Dense(None)

    def step(inputs: Any, labels: Any) -> Any:
        loss, gradients = model.gradients(inputs, labels)
        mean = tf.distribute.get_replica_context().all_reduce(MEAN, gradients)
        tf.distribute.get_replica_context().merge_call(model.descend, args=(mean,))
        return loss

    return step, model.variables


def in_functions() -> Replica:
    """The replica's step and what computes gradients are functions of their own."""
    model = Dense(tf.keras.optimizers.SGD(0.1))

    @tf.function
    def gradients(inputs: Any, labels: Any) -> Any:
        return model.gradients(inputs, labels)

    @tf.function
    def step(inputs: Any, labels: Any) -> Any:
        loss, found = gradients(inputs, labels)
        model.apply(found)
        return loss

    return step, model.variables


def two_optimizers() -> Replica:
    """Two optimizers for two halves of the variables, one of which steps twice."""
    model = Dense(None)
    first, second = tf.keras.optimizers.SGD(0.1), tf.keras.optimizers.Adam(0.01)

    def step(inputs: Any, labels: Any) -> Any:
        loss, gradients = model.gradients(inputs, labels)
        pairs = list(zip(gradients, model.variables, strict=True))
        first.apply_gradients(pairs[:2])
        second.apply_gradients(pairs[2:])
        _, again = model.gradients(inputs, labels)
        first.apply_gradients(list(zip(again, model.variables, strict=True))[:2])
        return loss

    return step, model.variables


def scaled() -> Replica:
    """Scales the loss by a factor that is part of the optimizer."""
    return scaling(Dense(tf.keras.optimizers.SGD(0.1, loss_scale_factor=512.0)))


def scaled_by_an_optimizer() -> Replica:
    """Scales the loss by an optimizer that applies finite gradients in a branch of the graph."""
    inner = tf.keras.optimizers.SGD(0.1)
    return scaling(Dense(tf.keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0)))


class Table:
    """An embedding, whose gradient is sparse, and a layer."""

    def __init__(self) -> None:
        random = np.random.default_rng(5)
        table = random.normal(size=(40, 6)).astype("float32")
        self.variables = [
            tf.Variable(table, name="table"),
            tf.Variable(random.normal(size=(6, models.CLASSES)).astype("float32"), name="kernel"),
            tf.Variable(1.0, name="temperature"),
        ]
        self.optimizer = tf.keras.optimizers.SGD(0.5)

    def step(self, inputs: Any, labels: Any) -> Any:
        words = tf.cast(tf.abs(inputs) * 10, tf.int32) % 40
        with tf.GradientTape() as tape:
            hidden = tf.reduce_mean(tf.gather(self.variables[0], words), axis=1)
            loss = mean_loss(labels, self.variables[2] * (hidden @ self.variables[1]))
        gradients = tape.gradient(loss, self.variables)
        assert isinstance(gradients[0], tf.IndexedSlices)
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        return loss


def table() -> Replica:
    model = Table()
    return model.step, model.variables


def normalized() -> Replica:
    """Keras layers: batch normalization, dropout that draws, and metrics."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((models.FEATURES,)),
            layers.Dense(16),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dense(models.CLASSES),
        ]
    )
    optimizer = tf.keras.optimizers.Adam(0.01)
    seen = tf.keras.metrics.Mean()

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, model(inputs, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        seen.update_state(loss)
        return loss

    return step, [*model.trainable_variables, *model.non_trainable_variables]


for make in (
    clipped,
    clipped_after,
    averaged,
    in_functions,
    two_optimizers,
    scaled,
    scaled_by_an_optimizer,
    table,
    normalized,
):
    cases.add(make.__name__, lambda make=make: against_plain(make, strategy="mg-wfbp"))


@cases
def table_made_dense() -> Any:
    return against_plain(table, strategy="wfbp", sparse_as_dense=True)
