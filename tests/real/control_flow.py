"""Scripts whose steps have conditions or loops, or that read their data in the step."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.real.dense_network import CLASSES, FEATURES, Network, cross_entropy, descend, rows
from tests.real.running import By, Scripts, use_float64

SCRIPTS = Scripts()


@SCRIPTS
def step_under_a_condition(by: By) -> Any:
    """Every third step trains with an auxiliary loss, by `tf.cond` around the whole gradient."""
    model = Network()
    variables = model.trainable_variables

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any, number: Any) -> Any:
        def gradients_with(weight: float) -> Any:
            with tf.GradientTape() as tape:
                out = model(x)
                loss = cross_entropy(y, out) + weight * tf.reduce_mean(out**2)
            return tape.gradient(loss, variables)

        chosen = tf.cond(number % 3 == 0, lambda: gradients_with(0.1), lambda: gradients_with(0.0))
        descend(variables, chosen)

    for number, (x, y) in enumerate(by.batches(9, rows)):
        train_step(x, y, tf.constant(number))
    return variables


@SCRIPTS
def auxiliary_head_under_a_condition(by: By) -> Any:
    """The trunk's gradients are always averaged, those of a head in a branch only."""
    model = Network()
    variables = model.trainable_variables
    head = tf.Variable(np.random.default_rng(3).normal(size=(CLASSES, 2)), name="head")

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any, number: Any) -> Any:
        with tf.GradientTape() as tape:
            out = model(x)
            loss = cross_entropy(y, out)
        descend(variables, tape.gradient(loss, variables))
        if number % 2 == 0:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.stop_gradient(out) @ head) ** 2)
            descend([head], tape.gradient(loss, [head]))
        return loss

    for number, (x, y) in enumerate(by.batches(9, rows)):
        train_step(x, y, tf.constant(number))
    return [*variables, head]


def as_dataset(by: By, steps: int) -> tf.data.Dataset:
    shares = [tf.stack(parts) for parts in zip(*by.batches(steps, rows), strict=True)]
    return tf.data.Dataset.from_tensor_slices(tuple(shares))


@SCRIPTS
def loop_over_a_dataset_in_the_step(by: By) -> Any:
    """`for x, y in ds` inside of the decorated function: a whole epoch is one call."""
    model = Network()
    variables = model.trainable_variables
    dataset = as_dataset(by, 5)

    @by.optimize()
    @tf.function
    def train_epoch(dataset: Any) -> Any:
        loss = tf.constant(0.0, tf.float64)
        for x, y in dataset:
            with tf.GradientTape() as tape:
                loss = cross_entropy(y, model(x))
            descend(variables, tape.gradient(loss, variables))
        return loss

    for _ in range(6):
        train_epoch(dataset)
    return variables


@SCRIPTS
def iterator_in_the_step(by: By) -> Any:
    """`next(iterator)` inside of the step."""
    model = Network()
    variables = model.trainable_variables
    iterator = iter(as_dataset(by, 7))

    @by.optimize()
    @tf.function
    def train_step(iterator: Any) -> Any:
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        descend(variables, tape.gradient(loss, variables))
        return loss

    for _ in range(7):
        train_step(iterator)
    return variables


@SCRIPTS
def several_steps_in_one_call(by: By) -> Any:
    """`for _ in tf.range(n): step(next(iterator))`, as on TPUs."""
    model = Network()
    variables = model.trainable_variables
    iterator = iter(as_dataset(by, 18))

    @by.optimize()
    @tf.function
    def train_steps(iterator: Any, count: Any) -> None:
        for _ in tf.range(count):
            x, y = next(iterator)
            with tf.GradientTape() as tape:
                loss = cross_entropy(y, model(x))
            descend(variables, tape.gradient(loss, variables))

    for _ in range(6):
        train_steps(iterator, tf.constant(3))
    return variables


@SCRIPTS
def steps_per_execution(by: By) -> Any:
    """Keras puts four steps into one graph."""
    use_float64()
    model = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(8, "tanh"), layers.Dense(CLASSES)]
    )
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=4,
    )
    random = np.random.default_rng(1)
    arrays = random.normal(size=(80, FEATURES)), random.integers(0, CLASSES, 80)
    by.fit(model, arrays, batch=4, epochs=2)
    return model.trainable_variables
