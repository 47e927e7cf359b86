"""Training with graphs that differ between ranks."""

from typing import Any

import keras
import tensorflow as tf
from harness import FOLDER, RANK

from sharded_cases.common import (
    NUM_STEPS,
    Network,
    cases,
    decorated,
    different,
    inputs_of,
    num_in_parts,
)
from sharded_cases.optimizers import Momentum
from tf_libra.runtime import grappler


class _OfRank(Momentum):
    """Momentum whose ops differ between ranks.

    HOW is one of
      ops: a gradient of each rank passes through more ops.
      sums: the same, and all ranks divide gradients by sums.
      logs: rank 0 prints the norm of a gradient, a slot of another, and a third gradient.
    """

    def __init__(self, how: str) -> None:
        self._how = how

    def apply(self, gradients: list[tf.Tensor], weights: list[keras.Variable]) -> None:
        if self._how != "logs":
            for _ in range(4):
                gradients[RANK] = tf.maximum(gradients[RANK], gradients[RANK] - 1)
        if self._how == "sums":
            gradients = [g / (1 + tf.reduce_sum(g * g)) for g in gradients]
        super().apply(gradients, weights)
        if self._how == "logs" and RANK == 0:
            found = tf.nn.l2_loss(gradients[0]), self.variables[1].value, gradients[5]
            tf.print(*found, output_stream=f"file://{FOLDER}/logged")


def of_rank(how: str) -> Any:
    """Trains with ops that differ between ranks."""
    ours, theirs = Network("written"), Network("written")
    for network, shard in ((theirs, False), (ours, "overlap")):
        network.optimizer = _OfRank(how)
        network.optimizer.build(network.weights)
        step = decorated(network, shard)
        for number in range(NUM_STEPS):
            step(*inputs_of(number))
    in_parts = num_in_parts(ours.variables())
    step.synchronize_variables()
    return {
        "different": different(ours, theirs),
        "in_parts": in_parts,
        "sharded": [group.is_sharded for group in grappler.report(step.plan).latest.groups],
        "explained": step.explain(),
    }


for how in ("ops", "logs"):
    cases.add(f"other_{how}", lambda how=how: of_rank(how))
