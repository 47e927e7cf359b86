"""Updates of scalars and vectors whose sums TensorFlow may add by one op."""

from typing import Any

import keras
import models
import numpy as np
import tensorflow as tf
from harness import SIZE

import tf_libra
from sharded_cases.common import NUM_STEPS, cases, different, inputs_of, num_in_parts
from sharded_cases.optimizers import Momentum


class _Added(Momentum):
    """Momentum whose slot is a sum of four terms."""

    def apply(self, gradients: list[tf.Tensor], weights: list[keras.Variable]) -> None:
        for gradient, weight, slot in zip(gradients, weights, self.variables, strict=True):
            slot.value.assign(0.9 * slot.value + gradient + 0.01 * weight.value + 0.5)
            weight.value.assign_sub(0.1 * slot.value)


class _Scaled:
    """A layer with a bias, and a factor that is a scalar."""

    def __init__(self) -> None:
        random = np.random.default_rng(3)
        shapes = (models.FEATURES, models.CLASSES), (models.CLASSES,), ()
        self.weights = [
            keras.Variable(random.normal(size=shape), dtype="float32", name=f"scaled{i}")
            for i, shape in enumerate(shapes)
        ]
        self.optimizer = _Added()
        self.optimizer.build(self.weights)

    def step(self, inputs: tf.Tensor, labels: tf.Tensor) -> None:
        kernel, bias, factor = values = [weight.value for weight in self.weights]
        with tf.GradientTape() as tape:
            loss = models.cross_entropy(labels, tf.tanh(inputs @ kernel + bias) * factor)
        self.optimizer.apply(tape.gradient(loss, values), self.weights)

    def variables(self) -> list[tf.Variable]:
        return [weight.value for weight in (*self.weights, *self.optimizer.variables)]


@cases
def added() -> Any:
    """Trains with and without sharded updates."""
    ours, theirs = _Scaled(), _Scaled()
    values = [weight.value for weight in ours.weights]
    plan = models.plan_of(values, SIZE, [0, 1, 2, 3], [1, 1, 1])
    steps = [
        tf_libra.optimize(plan=plan, shard_updates=shard)(tf.function(network.step))
        for network, shard in ((ours, "overlap"), (theirs, False))
    ]
    for number in range(2 * NUM_STEPS):
        for step in steps:
            step(*inputs_of(number))
    in_parts = num_in_parts(ours.variables())
    steps[0].synchronize_variables()
    return {
        "different": different(ours, theirs),
        "in_parts": in_parts,
        "explained": steps[0].explain(),
    }
