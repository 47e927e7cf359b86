"""Training under the strategy alone, and under a plan, from the same weights on the same data."""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import models
import numpy as np
import tensorflow as tf
from harness import RANK, SIZE, Cases

import tf_libra
import tf_libra.keras

# Before anything runs, as TensorFlow asks for.
STRATEGY = tf.distribute.MultiWorkerMirroredStrategy()
SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
STEPS = 9
TUNING = {"max_tuning_steps": 4, "progress": False}

cases = Cases()

# A replica's step, and the variables that it trains.
Replica = tuple[Callable[..., Any], Sequence[Any]]


def data(number: int, shard: int = models.SHARD) -> tuple[Any, Any]:
    """This worker's batch of a step."""
    return models.part(models.batch(number, SIZE, "float32", shard), RANK, SIZE)


def mean_loss(labels: Any, logits: Any) -> Any:
    """Returns this worker's part of the joint batch's mean loss, which is summed over workers."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.nn.compute_average_loss(losses, global_batch_size=SIZE * models.SHARD)


def whole_step(replica: Callable[..., Any]) -> Callable[..., Any]:
    def train_step(*batch: Any) -> Any:
        losses = STRATEGY.run(replica, args=batch)
        return STRATEGY.reduce(SUM, losses, axis=None)

    return train_step


def trained(make: Callable[[], Replica], step: Callable[..., Any], steps: int = STEPS) -> Any:
    """Weights after training by a step that is made of a replica's, and that step."""
    tf.keras.utils.set_random_seed(3)
    with STRATEGY.scope():
        replica, variables = make()
    train_step = step(whole_step(replica))
    losses = [float(train_step(*data(number))) for number in range(steps)]
    return {f"{i}": v.numpy() for i, v in enumerate(variables)}, losses, train_step


@functools.cache
def plainly(make: Callable[[], Replica], steps: int) -> tuple[dict[str, Any], list[float]]:
    """Weights and losses under the strategy alone."""
    return trained(make, tf.function, steps)[:2]


def save_both(plain: dict[str, Any], ours: dict[str, Any], **more: Any) -> None:
    """Weights by name, without us and with us."""
    both = {"plain": plain, "ours": ours}
    named = {
        f"{who}/{name}": value
        for who, variables in both.items()
        for name, value in variables.items()
    }
    cases.save(**named, **more)


def against_plain(
    make: Callable[[], Replica], steps: int = STEPS, strategy: Any = "libra", **options: Any
) -> dict[str, Any]:
    """Saves the weights of both, and says what became of the step."""
    plain, plain_losses = plainly(make, steps)

    def ours(step: Callable[..., Any]) -> Any:
        return tf_libra.optimize(strategy, **TUNING | options)(tf.function(step))

    weights, losses, train_step = trained(make, ours, steps)
    save_both(plain, weights, plain_losses=plain_losses, losses=losses)
    return describe(train_step)


def describe(train_step: Any) -> dict[str, Any]:
    return {
        "phase": str(train_step.phase),
        "plan": None if train_step.plan is None else train_step.plan.to_json(),
        "explained": train_step.explain(),
        "horovod": sorted(name for name in sys.modules if name.startswith("horovod")),
    }


class Dense:
    """Layers of `tf.Variable`s, made in the strategy's scope."""

    def __init__(self, optimizer: Any) -> None:
        self.net = models.HandWritten("float32", "sgd")
        self.variables = self.net.variables
        self.optimizer = optimizer
        if optimizer is not None:  # else its first step would be traced twice
            optimizer.build(self.variables)

    def logits(self, inputs: Any) -> Any:
        for layer in range(0, len(self.variables), 2):
            inputs = inputs @ self.variables[layer] + self.variables[layer + 1]
            if layer + 2 < len(self.variables):
                inputs = tf.nn.tanh(inputs)
        return inputs

    def gradients(self, inputs: Any, labels: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, self.logits(inputs))
        return loss, tape.gradient(loss, self.variables)

    def apply(self, gradients: Sequence[Any]) -> None:
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))

    def descend(self, _: Any, gradients: Sequence[Any]) -> None:
        """Updates the variables of all replicas together, without an optimizer."""
        for variable, gradient in zip(self.variables, gradients, strict=True):
            STRATEGY.extended.update(variable, lambda v, g: v.assign_sub(0.5 * g), (gradient,))

    def step(self, inputs: Any, labels: Any) -> Any:
        loss, gradients = self.gradients(inputs, labels)
        self.apply(gradients)
        return loss


def dense() -> Replica:
    model = Dense(tf.keras.optimizers.Adam(0.01))
    return model.step, model.variables


def scaling(model: Dense) -> Replica:
    """Trains with a loss that the optimizer scales up, and gradients that it scales down again."""

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, model.logits(inputs))
            large = model.optimizer.scale_loss(loss)
        model.apply(tape.gradient(large, model.variables))
        return loss

    return step, model.variables


def scale_of(optimizer: Any) -> dict[str, Any]:
    """Returns the final scale of the loss, and the number of updates."""
    return {
        "scale": float(np.asarray(optimizer.dynamic_scale)),
        "updates": int(np.asarray(optimizer.iterations)),
    }
