"""Models, data and references of the job `keras_fit.py`."""

import json
from collections.abc import Callable
from typing import Any

import keras
import models
import numpy as np
import tensorflow as tf
from harness import FOLDER, RANK, SIZE

SHARD = 4
STEPS = 11  # of one epoch; with steps_per_execution=4, 3 are left over


def layers() -> list[Any]:
    return [
        keras.layers.Dense(16, activation="tanh", name="first"),
        keras.layers.Dense(9, activation="tanh", name="second"),
        keras.layers.Dense(models.CLASSES, name="third"),
    ]


def plain_model() -> Any:
    return keras.Sequential([keras.Input((models.FEATURES,)), *layers()], name="plain")


class OwnStep(keras.Sequential):
    """A training step of its own: clips what is averaged."""

    def train_step(self, data: Any) -> dict[str, Any]:
        inputs, labels = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(inputs, labels, self(inputs, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        clipped, norm = tf.clip_by_global_norm(gradients, 0.5)
        self.optimizer.apply_gradients(zip(clipped, self.trainable_variables, strict=True))
        return {"loss": loss, "norm": norm}


def own_model() -> Any:
    return OwnStep([keras.Input((models.FEATURES,)), *layers()], name="own")


def compiled(make: Callable[[], Any], **options: Any) -> Any:
    keras.utils.set_random_seed(3)
    model = make()
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=None if make is own_model else ["accuracy"],
        **options,
    )
    return model


def data(alone: bool, seed: int = 0, short: bool = False) -> tf.data.Dataset:
    """Returns every rank's shares of the joint batches; with `short`, the last batch is short."""
    random = np.random.default_rng(seed)
    shards = [SHARD] * STEPS
    if short:
        shards[-1] = SHARD // 2
    size = SIZE * sum(shards)
    inputs = random.normal(size=(size, models.FEATURES)).astype(np.float32)
    labels = random.integers(0, models.CLASSES, size=size)
    chosen, at = [], 0
    for shard in shards:
        first = 0 if alone else RANK * shard
        count = SIZE * shard if alone else shard
        chosen += range(at + first, at + first + count)
        at += SIZE * shard
    dataset = tf.data.Dataset.from_tensor_slices((inputs[chosen], labels[chosen]))
    return dataset.batch(SIZE * SHARD if alone else SHARD)


def weights(model: Any) -> dict[str, np.ndarray]:
    """Returns trainable variables by number, since Keras numbers the names of layers."""
    return {str(i): variable.numpy() for i, variable in enumerate(model.trainable_variables)}


class References:
    """Training of one process alone, with which cases are compared; ranks share it out."""

    def __init__(self) -> None:
        self._functions: list[tuple[tuple[str, ...], Callable[[], Any]]] = []

    def add(self, function: Callable[[], Any], *names: str) -> None:
        """Adds what one process trains for some cases; it returns JSON values, or a model."""
        self._functions.append((names, function))

    def run(self) -> None:
        """Runs this rank's functions, and saves results or weights as `alone.CASE.json`."""
        for names, function in self._functions[RANK::SIZE]:
            found = function()
            if isinstance(found, keras.Model):
                found = {name: value.tolist() for name, value in weights(found).items()}
            for name in names:
                (FOLDER / f"alone.{name}.json").write_text(json.dumps(found))


def automatic() -> Any:
    """Names that Keras makes: "dense_3" on a rank that has built another model before."""
    sizes = (16, 9, models.CLASSES)
    dense = [keras.layers.Dense(size, activation="tanh") for size in sizes]
    return keras.Sequential([keras.Input((models.FEATURES,)), *dense])


class OddBatches(keras.Model):
    """Batches of a dict of ragged, sparse and dense tensors."""

    def __init__(self) -> None:
        super().__init__(name="odd")
        self.stack = layers()
        for layer, width in zip(self.stack, (models.FEATURES, 16, 9), strict=True):
            layer.build((None, width))
        self.built = True

    def call(self, inputs: Any) -> Any:
        found = inputs["dense"] + tf.sparse.to_dense(inputs["sparse"])
        found += tf.reduce_sum(inputs["ragged"], axis=1)[:, tf.newaxis]
        for layer in self.stack:
            found = layer(found)
        return found

    def train_step(self, data: Any) -> Any:
        inputs, labels = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(inputs["dense"], labels, self(inputs))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def odd_model(**options: Any) -> Any:
    keras.utils.set_random_seed(3)
    model = OddBatches()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, **options)
    return model


def odd_data(alone: bool) -> tf.data.Dataset:
    """Returns `data` as such batches."""

    def more(inputs: Any, labels: Any) -> Any:
        # As many numbers in a row as its label says: other sizes in every batch.
        rows = tf.RaggedTensor.from_row_lengths(
            tf.ones([tf.reduce_sum(labels)]) / 8, row_lengths=labels
        )
        few = tf.where(inputs > 1.0, inputs, 0.0)
        return {"dense": inputs, "sparse": tf.sparse.from_dense(few), "ragged": rows}, labels

    return data(alone).map(more)
