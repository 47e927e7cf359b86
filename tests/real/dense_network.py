"""Network, loss and data that several scripts train."""

import itertools
from typing import Any

import numpy as np
import tensorflow as tf

FEATURES, CLASSES = 6, 3


def rows(random: np.random.Generator) -> Any:
    return random.normal(size=(8, FEATURES)), random.integers(0, CLASSES, 8)


def cross_entropy(labels: Any, logits: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


class Network(tf.Module):
    """Three dense layers in double precision."""

    def __init__(self, seed: int = 7, dtype: str = "float64") -> None:
        super().__init__(name="network")
        random = np.random.default_rng(seed)
        widths = (FEATURES, 8, 7, CLASSES)
        self.layers = [
            (
                tf.Variable((random.normal(size=(i, o)) / 2).astype(dtype), name=f"w{n}"),
                tf.Variable(np.zeros(o, dtype), name=f"b{n}"),
            )
            for n, (i, o) in enumerate(itertools.pairwise(widths))
        ]

    def __call__(self, x: Any) -> Any:
        for number, (w, b) in enumerate(self.layers):
            x = x @ w + b
            x = tf.tanh(x) if number + 1 < len(self.layers) else x
        return x


def descend(variables: Any, gradients: Any, rate: float = 0.1) -> None:
    for variable, gradient in zip(variables, gradients, strict=True):
        if gradient is not None:
            variable.assign_sub(rate * tf.convert_to_tensor(gradient))
