"""Layers that a pipeline can be cut between, trained with momentum; in one process:

`layer_stack.py STEPS FILE.npz`.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tf_libra

LAYERS, WIDTH, SAMPLES = 4, 6, 24


class Stack:
    """Weights, and their momenta."""

    def __init__(self) -> None:
        starts = [normal([WIDTH, WIDTH], i, 1) for i in range(LAYERS)]
        self.weights = [tf.Variable(start, name=f"weight{i}") for i, start in enumerate(starts)]
        self.momenta = [
            tf.Variable(tf.zeros_like(start), trainable=False, name=f"momentum{i}")
            for i, start in enumerate(starts)
        ]

    def loss(self, inputs: tf.Tensor, labels: tf.Tensor, weights: Any = None) -> tf.Tensor:
        """Returns the loss of the layers in the order of these weights, or of all layers."""
        x = inputs
        for weight in weights or self.weights:
            x = tf_libra.boundary(tf.tanh(x @ weight))
        return tf.reduce_mean((x - labels) ** 2)

    def step(self, inputs: tf.Tensor, labels: tf.Tensor, weights: Any = None) -> tf.Tensor:
        """Layers come in the order of these weights."""
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels, weights)
        gradients = tape.gradient(loss, self.weights)
        for weight, momentum, gradient in zip(self.weights, self.momenta, gradients, strict=True):
            momentum.assign(0.9 * momentum + gradient)
            weight.assign_sub(0.1 * momentum)
        return loss

    def write(self, path: Path, step: int) -> None:
        """Writes values by name; no reader sees a partial file."""
        values = {weight.name: weight.numpy() for weight in (*self.weights, *self.momenta)}
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            np.savez(file, step=step, **values)
        temporary.replace(path)


def batch(number: int) -> list[tf.Tensor]:
    """Inputs and labels of a step, the same in every process."""
    return [normal([SAMPLES, WIDTH], number, seed) for seed in (2, 3)]


def normal(shape: list[int], number: int, seed: int) -> tf.Tensor:
    """Numbers that are the same in every process."""
    return tf.random.stateless_normal(shape, [number, seed], dtype=tf.float64)


if __name__ == "__main__":
    stack = Stack()
    for number in range(int(sys.argv[1])):
        stack.step(*batch(number))
    stack.write(Path(sys.argv[2]), int(sys.argv[1]))
