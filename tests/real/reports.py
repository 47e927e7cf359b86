"""Training scripts of users whose launcher sets TF_CONFIG: Keras' `fit` and steps by hand.

Each situation has been reported in public as one in which TensorFlow's strategy of several workers
fails or hangs. The scripts are those of the users without a strategy.
"""

import json
import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tf_libra
import tf_libra.keras
from tests.jobs import models
from tests.jobs.harness import RANK, SIZE, Cases, own

BATCH, STEPS, EPOCHS = 4, 6, 2
CLASSES = 5
TUNING = {"max_tuning_steps": 4, "progress": False}
SPARSE = keras.losses.SparseCategoricalCrossentropy

cases = Cases()


def fit_of_all(make: Callable[[], Any], arrays: Any, **options: Any) -> dict[str, Any]:
    """Fits on this rank's examples, and on rank 0 one process on the joint batches.

    Saves the weights of both.
    """
    keras.utils.set_random_seed(1 + RANK)  # rank 0's weights are copied
    model = make()
    fitting = tf_libra.keras.optimize(model, "libra", **TUNING)
    joint = tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH * SIZE, drop_remainder=True)
    data = joint.map(lambda *batch: tf.nest.map_structure(own, batch))
    average = tf_libra.keras.AverageMetrics()
    history = model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[average], **options).history
    saved = {f"ours/{i}": np.asarray(v) for i, v in enumerate(model.trainable_variables)}
    if RANK == 0:
        keras.utils.set_random_seed(1)
        alone = make()
        alone.fit(joint, epochs=EPOCHS, verbose=0)
        weights = alone.trainable_variables
        saved |= {f"alone/{i}": np.asarray(v) for i, v in enumerate(weights)}
    cases.save(**saved)
    return {"phase": str(fitting.phase), "history": history}


def rows(features: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    count = BATCH * SIZE * STEPS
    return random.normal(size=(count, *features)).astype("float32"), random.integers(
        0, CLASSES, count
    )


@cases
def convnet_of_the_tutorial() -> Any:
    """The network of TensorFlow's tutorial for several workers, with metrics and validation."""

    def make() -> Any:
        model = keras.Sequential(
            [
                keras.Input((8, 8)),
                layers.Reshape((8, 8, 1)),
                layers.Conv2D(4, 3, activation="relu"),
                layers.Flatten(),
                layers.Dense(CLASSES),
            ]
        )
        loss = SPARSE(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05), loss, metrics=["accuracy"])
        return model

    return fit_of_all(make, rows((8, 8)), validation_data=rows((8, 8), seed=1))


@cases
def dictionaries_of_inputs() -> Any:
    """Inputs in nested dictionaries, outputs and losses in another."""
    random = np.random.default_rng(0)
    count = BATCH * SIZE * STEPS
    inputs = {
        "user": random.integers(0, 7, (count, 1)),
        "words": {
            "ids": random.integers(0, 9, (count, 3)),
            "weights": random.random((count, 3)).astype("float32"),
        },
    }
    outputs = {
        "click": random.integers(0, 2, (count, 1)).astype("float32"),
        "rating": random.random((count, 1)).astype("float32"),
    }

    def make() -> Any:
        user = keras.Input((1,), name="user", dtype="int64")
        ids = keras.Input((3,), name="ids", dtype="int64")
        weights = keras.Input((3,), name="weights")
        words = layers.Dot(axes=(1, 1))([layers.Embedding(9, 4)(ids), weights[..., None]])
        both = [layers.Flatten()(embedded) for embedded in (layers.Embedding(7, 4)(user), words)]
        hidden = layers.Dense(6, activation="tanh")(layers.Concatenate()(both))
        model = keras.Model(
            {"user": user, "words": {"ids": ids, "weights": weights}},
            {
                "click": layers.Dense(1, activation="sigmoid", name="click")(hidden),
                "rating": layers.Dense(1, name="rating")(hidden),
            },
        )
        losses = {"click": "binary_crossentropy", "rating": "mse"}
        model.compile(keras.optimizers.SGD(0.1), losses, metrics={"rating": ["mae"]})
        return model

    return fit_of_all(make, (inputs, outputs))


@cases
def texts_of_any_length() -> Any:
    """Pairs of texts, whose words share an embedding: slices of a shape that is known in part."""
    random = np.random.default_rng(0)
    count = BATCH * SIZE * STEPS
    source, target = (random.integers(1, 9, (count, length)) for length in (5, 4))

    def make() -> Any:
        words = layers.Embedding(9, 4, mask_zero=True)
        inputs = [keras.Input((None,), dtype="int64") for _ in range(2)]
        encoded, decoded = (words(texts) for texts in inputs)
        _, state = layers.GRU(6, return_state=True)(encoded)
        outputs = layers.GRU(6, return_sequences=True)(decoded, initial_state=state)
        model = keras.Model(inputs, layers.Dense(9)(outputs))
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), SPARSE(from_logits=True))
        return model

    return fit_of_all(make, ((source, target), target))


class Accumulating(keras.Model):
    """A `train_step` that sums gradients and updates in a branch of every third step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.count = tf.Variable(0, trainable=False)
        self.sums = [
            tf.Variable(tf.zeros(v.shape), trainable=False) for v in self.trainable_variables
        ]

    def train_step(self, data: Any) -> Any:
        inputs, labels = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=labels, y_pred=self(inputs, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.assign_add(gradient / 3.0)
        self.count.assign_add(1)
        tf.cond(tf.equal(self.count, 3), self.update, lambda: None)
        return {"loss": loss}

    def update(self) -> None:
        variables = self.trainable_variables
        totals = [tf.identity(total) for total in self.sums]
        self.optimizer.apply_gradients(zip(totals, variables, strict=True))
        self.count.assign(0)
        for total in self.sums:
            total.assign(tf.zeros_like(total))


def classifier(kind: type[keras.Model]) -> Any:
    inputs = keras.Input((6,))
    hidden = layers.Dense(8, activation="tanh")(inputs)
    return kind(inputs, layers.Dense(CLASSES, dtype="float32")(hidden))


@cases
def accumulation_in_train_step() -> Any:
    def make() -> Any:
        model = classifier(Accumulating)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), SPARSE(from_logits=True))
        return model

    return fit_of_all(make, rows((6,)))


@cases
def bfloat16_accumulated_and_clipped() -> Any:
    """Rounding, accumulation and clipping: weights of the ranks have the same bits."""

    def make() -> Any:
        model = classifier(keras.Model)
        optimizer = keras.optimizers.AdamW(
            0.05, gradient_accumulation_steps=2, global_clipnorm=0.05
        )
        model.compile(optimizer, SPARSE(from_logits=True))
        return model

    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return fit_of_all(make, rows((6,)))
    finally:
        keras.config.set_dtype_policy("float32")


@cases
def loop_of_the_tutorial() -> Any:
    """The loop by hand of TensorFlow's tutorial, with Adam and metrics that the step updates."""

    class Loop:
        def __init__(self) -> None:
            keras.utils.set_random_seed(1)
            self.model = keras.Sequential(
                [
                    keras.Input((8, 8, 1)),
                    layers.Conv2D(4, 3, activation="relu"),
                    layers.MaxPooling2D(),
                    layers.Flatten(),
                    layers.Dense(CLASSES),
                ]
            )
            self.optimizer = keras.optimizers.Adam(0.01)
            self.loss = SPARSE(from_logits=True, reduction="none")
            self.accuracy = keras.metrics.SparseCategoricalAccuracy()

        def step(self, images: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                predictions = self.model(images, training=True)
                loss = tf.nn.compute_average_loss(self.loss(labels, predictions))
            variables = self.model.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            self.accuracy.update_state(labels, predictions)
            return loss

        def weights(self) -> dict[str, np.ndarray]:
            return {str(i): np.asarray(v) for i, v in enumerate(self.model.trainable_variables)}

    ours, alone = Loop(), Loop()
    step = tf_libra.optimize("libra", **TUNING)(tf.function(ours.step))
    images, labels = rows((8, 8, 1))
    data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(BATCH * SIZE)
    for _ in range(EPOCHS):
        for joint in data:
            step(*map(own, joint))
            alone.step(*joint)
    saved = {f"ours/{name}": value for name, value in ours.weights().items()}
    cases.save(**saved, **{f"alone/{name}": value for name, value in alone.weights().items()})
    return str(step.phase)


@cases
def two_jobs_in_turn() -> Any:
    """Two trainings of one process: for the second, TF_CONFIG exchanges the ranks."""
    first = os.environ["TF_CONFIG"]
    config = json.loads(first)
    config["cluster"]["worker"].reverse()
    config["task"]["index"] = SIZE - 1 - RANK
    places, saved = [], {}
    try:
        for number, variables in enumerate((first, json.dumps(config))):
            os.environ["TF_CONFIG"] = variables
            rank = tf_libra.rank()
            ours, alone = (models.HandWritten("float32", "sgd") for _ in range(2))
            step = tf_libra.optimize("libra", **TUNING)(tf.function(ours.step))
            for index in range(STEPS):
                joint = models.batch(index + 100 * number, SIZE, "float32")
                step(*models.part(joint, rank, SIZE))
                alone.step(*joint)
            places.append([rank, str(step.phase)])
            saved |= {f"ours/{number}/{name}": v for name, v in ours.weights().items()}
            saved |= {f"alone/{number}/{name}": v for name, v in alone.weights().items()}
    finally:
        os.environ["TF_CONFIG"] = first
    cases.save(**saved)
    return places


if __name__ == "__main__":
    cases.run()
