"""Models in plain TensorFlow, with boundaries between layers."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tests.model_parallel.trained_model import Trained, cross_entropy
from tf_libra.model_parallel.capture.trace_hooks import boundary

keras = tf.keras


def deep(num_layers: int = 6) -> Trained:
    """A chain of layers in plain TensorFlow, which takes less time to trace than Keras' layers."""
    weights = _matrices("deep", itertools.pairwise([64, *[12] * (num_layers - 1), 10]))

    def call(images: Any) -> Any:
        x = tf.reshape(images, [-1, 64])
        for weight in weights[:-1]:
            x = boundary(tf.tanh(x @ weight))
        return x @ weights[-1]

    return Trained(call, _mean_loss, weights, keras.optimizers.SGD(0.1))


def forked() -> Trained:
    """Two branches that begin after one layer and join in another, in plain TensorFlow."""
    first, left, right, last = _matrices("forked", [(64, 12), (12, 12), (12, 12), (12, 10)])

    def call(images: Any) -> Any:
        x = boundary(tf.tanh(tf.reshape(images, [-1, 64]) @ first))
        branches = [boundary(tf.tanh(x @ weight)) for weight in (left, right)]
        return boundary(tf.add_n(branches)) @ last

    return Trained(call, _mean_loss, [first, left, right, last], keras.optimizers.SGD(0.1))


def tied() -> Trained:
    """A language model whose embedding is also its last layer, in plain TensorFlow."""
    table = tf.Variable(tf.random.stateless_normal([10, 6], [1, 2]), name="table")
    hidden = [
        tf.Variable(tf.random.stateless_normal([6, 6], [3, i]), name=f"hidden{i}") for i in range(3)
    ]

    def call(images: Any) -> Any:
        words = tf.cast(tf.abs(images[:, :, 0, 0]) * 4, tf.int32) % 10
        x = boundary(tf.reduce_mean(tf.gather(table, words), 1))
        for weight in hidden:
            x = boundary(tf.tanh(x @ weight))
        return x @ tf.transpose(table)

    variables = [table, *hidden]
    return Trained(call, cross_entropy, variables, keras.optimizers.SGD(0.5))


def words() -> Trained:
    """A model with two lookups in one table, in which examples share many words."""
    table = tf.Variable(tf.random.stateless_normal([10, 6], [1, 2]), name="table")
    dense = _matrices("dense", ((6, 7), (7, 6), (6, 10)))

    def call(images: Any) -> Any:
        words = tf.cast(tf.abs(images[:, :, 0, 0]) * 4, tf.int32) % 10
        first = tf.gather(table, words[:, 0])
        x = boundary(first + tf.reduce_mean(tf.gather(table, words), 1))
        for weight in dense[:2]:
            x = boundary(tf.tanh(x @ weight))
        return x @ dense[2]

    return Trained(call, cross_entropy, [table, *dense], keras.optimizers.SGD(0.5))


class _Scattering:
    """Plain SGD of a table, whose rows it scatters by hand, and of matrices."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.iterations = tf.Variable(0, trainable=False)
        self.variables = [self.iterations]

    def build(self, variables: Any) -> None:
        pass

    def apply_gradients(self, pairs: Any) -> None:
        for gradient, variable in pairs:
            if variable is self._table:
                variable.scatter_sub(tf.IndexedSlices(0.5 * gradient.values, gradient.indices))
            else:
                variable.assign_sub(0.5 * gradient)
        self.iterations.assign_add(1)


def scattered() -> Trained:
    """Returns `words`, whose step reads the rows of sparse gradients."""
    trained = words()
    return replace(trained, optimizer=_Scattering(trained.variables[0]), keeps_rows=True)


def permuted() -> Trained:
    """A model whose first layer reads integers that other layers use."""
    order = tf.Variable(tf.random.shuffle(tf.range(16)), trainable=False, name="order")
    weights = [
        tf.Variable(0.3 * tf.random.stateless_normal([size, 16], [4, i]), name=f"weight{i}")
        for i, size in enumerate((64, 16, 16))
    ]

    def call(images: Any) -> Any:
        x = tf.reshape(images, [-1, 64])
        for weight in weights:
            x = boundary(tf.tanh(tf.gather(x @ weight, order, axis=1)))
        return x[:, :10]

    return Trained(call, cross_entropy, weights, keras.optimizers.SGD(0.5), state=(order,))


def plain() -> Trained:
    """A model without boundaries between layers."""
    weights = [tf.Variable(tf.eye(64)), tf.Variable(tf.ones([64, 10]))]

    def call(images: Any) -> Any:
        return tf.tanh(tf.reshape(images, [-1, 64]) @ weights[0]) @ weights[1]

    return Trained(call, cross_entropy, weights, keras.optimizers.SGD(0.1))


def _matrices(name: str, shapes: Iterable[tuple[int, int]]) -> list[tf.Variable]:
    return [
        tf.Variable(
            tf.random.stateless_normal(shape, [5, number]) / shape[0] ** 0.5, name=f"{name}{number}"
        )
        for number, shape in enumerate(shapes)
    ]


def _mean_loss(labels: Any, logits: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
