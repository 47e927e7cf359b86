"""Ranks whose files hold different numbers of batches."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tf_libra
from tests.real.dense_network import CLASSES, FEATURES, Network, cross_entropy, descend, rows
from tests.real.running import By, Scripts, use_float64

SCRIPTS = Scripts()
# Batches in the file of each rank.
LENGTHS = (5, 8)


def files() -> list[list[Any]]:
    """Returns the batches in the file of each rank."""
    return [
        [rows(np.random.default_rng(100 * rank + number)) for number in range(length)]
        for rank, length in enumerate(LENGTHS)
    ]


def joint_batches() -> Iterator[Any]:
    """Yields each step's batches of all ranks that have one, as one batch."""
    for number in range(max(LENGTHS)):
        there = [batches[number] for batches in files() if number < len(batches)]
        yield tuple(np.concatenate(part) for part in zip(*there, strict=True))


@SCRIPTS
def files_of_unequal_length(by: By) -> Any:
    """Each rank reads its file to the end, twice, without their number."""
    model = Network()
    variables = model.trainable_variables

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        descend(variables, tape.gradient(loss, variables))

    for _ in range(2):
        batches: Any = tf_libra.join(iter(files()[by.rank])) if by.ours else joint_batches()
        for x, y in batches:
            train_step(tf.constant(x), tf.constant(y))
    return variables


@SCRIPTS
def files_of_unequal_length_by_fit(by: By) -> Any:
    """Keras knows the number of batches of each rank."""
    use_float64()
    model = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(8, "tanh"), layers.Dense(CLASSES)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    batches = files()[by.rank] if by.ours else list(joint_batches())
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature=(
            tf.TensorSpec((None, FEATURES), tf.float64),
            tf.TensorSpec((None,), tf.int64),
        ),
    )
    by.fit_dataset(model, dataset.apply(tf.data.experimental.assert_cardinality(len(batches))))
    return model.trainable_variables
