"""Steps on two workers, and the same steps alone on the joint batch."""

import sys
from collections.abc import Callable
from typing import Any

import models
import numpy as np
import tensorflow as tf
from harness import RANK, SIZE, Cases

import tf_libra

cases = Cases()
PLAN_FILE = sys.argv[1]
LAST = SIZE - 1
DTYPE = "float64"
# Measuring that ends early still leads through every phase that other ranks have to follow.
BRIEFLY: dict[str, Any] = {"strategy": "mg-wfbp", "max_tuning_steps": 3}
STEPS = 6

Wrap = Callable[[Callable[..., Any]], Any]
Share = Callable[[Any], Any]


def batch(number: int, shard: int = models.SHARD) -> Any:
    return models.batch(number, SIZE, DTYPE, shard)


def part(joint: Any) -> Any:
    """This rank's share of every array of a joint batch."""

    def cut(array: Any) -> Any:
        size = len(array) // SIZE
        return array[RANK * size : (RANK + 1) * size]

    return tf.nest.map_structure(cut, joint)


def whole(joint: Any) -> Any:
    return joint


def eagerly(function: Callable[..., Any]) -> Any:
    """Wraps the step of one process, which needs no graph: tracing is the slowest part here."""
    return function


def optimized(**options: Any) -> Wrap:
    def wrap(function: Callable[..., Any]) -> Any:
        return tf_libra.optimize(**(options or BRIEFLY))(tf.function(function))

    return wrap


def train_steps(step: Callable[..., Any], share: Share) -> None:
    for number in range(STEPS):
        step(*share(batch(number)))


def values(variables: Any) -> dict[str, Any]:
    return {
        str(index): tf.convert_to_tensor(variable).numpy()
        for index, variable in enumerate(variables)
    }


def compared(train: Callable[[Wrap, Share], tuple[Any, Any]], **options: Any) -> Any:
    """Runs `train` on shards, and on rank 0 alone on joint batches.

    It returns variables, and a value to report.
    """
    ours, reported = train(optimized(**options), part)
    saved = {f"ours/{k}": v for k, v in values(ours).items()}
    if RANK == 0:
        alone, _ = train(eagerly, whole)
        saved |= {f"alone/{k}": v for k, v in values(alone).items()}
    cases.save(**saved)
    return reported


def hand_written(optimizer: str = "momentum") -> models.HandWritten:
    return models.HandWritten(DTYPE, optimizer)


def variable(shape: Any, name: str, seed: int = 0, **options: Any) -> tf.Variable:
    random = np.random.default_rng(seed)
    return tf.Variable(random.normal(size=shape).astype(DTYPE) / 4, name=name, **options)


def descend(variables: Any, gradients: Any, rate: float = 0.1) -> None:
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(rate * tf.convert_to_tensor(gradient))


class Adversaries:
    """A generator and a discriminator, each with an optimizer."""

    def __init__(self) -> None:
        self.generator = [variable([3, models.FEATURES], "g", 1), variable([8, 8], "unused", 5)][:1]
        self.judge = [variable([models.FEATURES, 6], "d0", 2), variable([6, 1], "d1", 3)]
        self.generator_optimizer = tf.keras.optimizers.Adam(0.01)
        self.judge_optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
        self.generator_optimizer.build(self.generator)
        self.judge_optimizer.build(self.judge)

    def judged(self, inputs: Any) -> Any:
        return tf.nn.tanh(inputs @ self.judge[0]) @ self.judge[1]

    def judge_step(self, real: Any, noise: Any) -> Any:
        with tf.GradientTape() as tape:
            fake = tf.nn.tanh(noise @ self.generator[0])
            loss = tf.reduce_mean(tf.nn.softplus(-self.judged(real)))
            loss += tf.reduce_mean(tf.nn.softplus(self.judged(fake)))
        self.judge_optimizer.apply_gradients(
            zip(tape.gradient(loss, self.judge), self.judge, strict=True)
        )
        return loss

    def generator_step(self, noise: Any) -> Any:
        with tf.GradientTape() as tape:
            fake = tf.nn.tanh(noise @ self.generator[0])
            loss = tf.reduce_mean(tf.nn.softplus(-self.judged(fake)))
        self.generator_optimizer.apply_gradients(
            zip(tape.gradient(loss, self.generator), self.generator, strict=True)
        )
        return loss

    def both(self, real: Any, noise: Any) -> Any:
        return self.judge_step(real, noise) + self.generator_step(noise)

    @property
    def variables(self) -> list[Any]:
        return [*self.generator, *self.judge]


def noise_of(number: int) -> Any:
    return tf.constant(np.random.default_rng(number).normal(size=(8, 3)))
