"""Trains two ranks of this machine under a plan, with nothing but TF-Libra and TensorFlow.

    tf-libra run -np 2 python tools/train_two_ranks.py

For environments that have no Horovod, as that in which `tools/try_wheel.py` tries a wheel. Weights
are compared with those of one process that trains on the joint batch.
"""

import itertools
import sys
from typing import Any

import numpy as np
import tensorflow as tf

import tf_libra

NUM_STEPS = 9
ROWS = 8  # of a rank's batch
WIDTHS = (16, 32, 32, 4)


class Training:
    """A small network, and a step of gradient descent."""

    def __init__(self) -> None:
        """Begins with the same weights everywhere."""
        random = tf.random.Generator.from_seed(7)
        self.weights = [
            tf.Variable(random.normal((m, n), stddev=0.3, dtype=tf.float64), name=f"layer_{i}")
            for i, (m, n) in enumerate(itertools.pairwise(WIDTHS))
        ]

    def step(self, features: Any, targets: Any) -> None:
        """Updates the weights by the gradients."""
        with tf.GradientTape() as tape:
            outputs = features
            for weight in self.weights:
                outputs = tf.tanh(outputs @ weight)
            loss = tf.reduce_mean((outputs - targets) ** 2)
        gradients = tape.gradient(loss, self.weights)
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.assign_sub(0.5 * gradient)


def main() -> int:
    """Trains as one rank and compares; 1 if something is not as it should be."""
    rank, size = tf_libra.rank(), tf_libra.size()
    random = tf.random.Generator.from_seed(8)
    features = random.normal((size * ROWS, WIDTHS[0]), dtype=tf.float64)
    targets = random.normal((size * ROWS, WIDTHS[-1]), dtype=tf.float64)
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    ours, alone = Training(), Training()
    step = tf_libra.optimize("libra", max_tuning_steps=4, progress=False)(tf.function(ours.step))
    for _ in range(NUM_STEPS):
        step(features[mine], targets[mine])
        alone.step(features, targets)
    for weight, other in zip(ours.weights, alone.weights, strict=True):
        np.testing.assert_allclose(weight.numpy(), other.numpy(), rtol=1e-9)
    if size != 2 or step.phase != "run" or step.plan is None:
        print(f"rank {rank} of {size} is in phase {step.phase}, not under a plan", file=sys.stderr)
        return 1
    if "horovod" in sys.modules:
        print(f"rank {rank} has imported Horovod", file=sys.stderr)
        return 1
    if rank == 0:
        print(f"2 ranks trained {NUM_STEPS} steps to the weights of one, under a plan")
    return 0


if __name__ == "__main__":
    sys.exit(main())
