"""Models whose layers draw random numbers or write states."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tests.model_parallel.trained_model import Trained, cross_entropy, from_keras
from tf_libra.model_parallel.capture.trace_hooks import boundary

keras = tf.keras


def normalized() -> Trained:
    """A model with batch normalization, which sees the examples of one device at a time."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input([8, 8, 1]),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(16, activation="relu"),
            layers.Dense(10),
        ]
    )
    return from_keras(model, keras.optimizers.SGD(0.1, momentum=0.9))


def dropping() -> Trained:
    """A model with dropout, whose seeds are variables of the layers."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input([8, 8, 1]),
            layers.Flatten(),
            layers.Dense(16, activation="relu"),
            layers.Dropout(0.5, seed=3),
            layers.Dense(16, activation="relu"),
            layers.Dropout(0.25, seed=5),
            layers.Dense(10),
        ]
    )
    return from_keras(model, keras.optimizers.SGD(0.1))


def dropping_twice() -> Trained:
    """A model with a dropout layer that is called twice: it reads its seed after a write."""
    layers = keras.layers
    drop = layers.Dropout(0.5, seed=3)
    x = inputs = layers.Input([8, 8, 1])
    x = layers.Flatten()(x)
    for _ in range(2):
        x = drop(layers.Dense(16, activation="relu")(x))
    outputs = layers.Dense(10)(layers.Dense(16, activation="relu")(x))
    metric = keras.metrics.SparseCategoricalAccuracy()
    return from_keras(keras.Model(inputs, outputs), keras.optimizers.SGD(0.1), metric=metric)


def _stateful(function: Callable[[Any, Any, Any], Any], states: Sequence[Any]) -> Trained:
    """A model whose layers write a weight and a state, and then compute with them."""
    weights = [
        tf.Variable(tf.random.stateless_normal([64, 64], [i, 1]) / 8, name=f"kernel{i}")
        for i in range(len(states))
    ]
    head = tf.Variable(tf.random.stateless_normal([64, 10], [3, 1]) / 8, name="head")

    def call(images: Any) -> Any:
        x = tf.reshape(images, [-1, 64])
        for weight, state in zip(weights, states, strict=True):
            x = boundary(function(x, weight, state))
        return x @ head

    optimizer = keras.optimizers.SGD(0.1)
    return Trained(call, cross_entropy, [*weights, head], optimizer, state=tuple(states))


def iterated() -> Trained:
    """A model with power iterations, whose vectors are read after they are written."""

    def of(x: Any, weight: Any, vector: Any) -> Any:
        other = tf.math.l2_normalize(vector @ tf.transpose(weight))
        vector.assign(tf.stop_gradient(tf.math.l2_normalize(other @ weight)))
        scale = tf.stop_gradient(other) @ weight @ tf.transpose(vector)
        return tf.tanh(x @ (2 * weight / scale))

    vectors = [
        tf.Variable(tf.random.stateless_normal([1, 64], [i, 2]), trainable=False, name=f"vector{i}")
        for i in range(3)
    ]
    return _stateful(of, vectors)


def spectral() -> Trained:
    """A model with spectral normalization in every microbatch, and weight decay."""
    layers = keras.layers
    model = keras.Sequential([layers.Input([8, 8, 1]), layers.Flatten()])
    for _ in range(3):
        model.add(layers.SpectralNormalization(layers.Dense(16, activation="tanh")))
    model.add(layers.Dense(10))
    return from_keras(model, keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01))


def running_mean() -> Trained:
    """A model that subtracts running means, which it reads after it has written them."""

    def of(x: Any, weight: Any, mean: Any) -> Any:
        mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x, 0))
        return tf.tanh((x - mean) @ weight)

    means = [tf.Variable(tf.zeros([64]), trainable=False, name=f"mean{i}") for i in range(3)]
    return _stateful(of, means)


def generating() -> Trained:
    """A model with noise of random generators."""
    generators = [tf.random.Generator.from_seed(seed) for seed in range(3)]
    weights = [
        tf.Variable(tf.random.stateless_normal([64, 64], [i, 1]) / 8, name=f"noisy{i}")
        for i in range(3)
    ]
    head = tf.Variable(tf.random.stateless_normal([64, 10], [3, 1]) / 8, name="head")

    def call(images: Any) -> Any:
        x = tf.reshape(images, [-1, 64])
        for weight, generator in zip(weights, generators, strict=True):
            noise = generator.normal([64], stddev=0.1)
            x = tf.tanh(x @ weight)
            x = boundary(x + noise + generator.normal(tf.shape(x), stddev=0.1))
        return x @ head

    states = tuple(generator.state for generator in generators)
    variables = [*weights, head]
    return Trained(call, cross_entropy, variables, keras.optimizers.SGD(0.1), state=states)
