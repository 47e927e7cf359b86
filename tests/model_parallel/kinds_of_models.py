"""Ten kinds of models, each of which `auto` trains through a switch between families."""

from dataclasses import replace
from typing import Any

import tensorflow as tf

from tests.model_parallel import models
from tests.model_parallel.plain_models import deep
from tests.model_parallel.trained_model import Trained, cross_entropy, from_keras

keras = tf.keras


def convolutional() -> Trained:
    """Returns the convolutional model without metrics."""
    return replace(models.convolutional(), metric=None, norms=None)


def attention() -> Trained:
    """Returns a transformer of one block."""
    return models.transformer(num_blocks=1)


def recurrent() -> Trained:
    """A model with two recurrent layers over the rows of an image."""
    layers = keras.layers
    model = keras.Sequential([layers.Input([8, 8, 1]), layers.Reshape([8, 8])])
    model.add(layers.LSTM(6, return_sequences=True))
    model.add(layers.GRU(4))
    model.add(layers.Dense(10))
    # Layers have seeds for dropout, of which there is none.
    return replace(from_keras(model, keras.optimizers.SGD(0.1)), state=())


def halves(images: Any) -> dict[str, Any]:
    """Returns the two inputs of `two_inputs`: the upper and the lower halves of images."""
    return {"upper": images[:, :4], "lower": images[:, 4:]}


def two_inputs() -> Trained:
    """A model with a layer for each of two inputs, which images may be given as."""
    layers = keras.layers
    inputs = {name: layers.Input([4, 8, 1], name=name) for name in ("upper", "lower")}
    sides = [layers.Dense(12, activation="tanh")(layers.Flatten()(x)) for x in inputs.values()]
    x = layers.Dense(12, activation="relu")(layers.Concatenate()(sides))
    model = keras.Model(inputs, layers.Dense(10)(x))
    trained = from_keras(model, keras.optimizers.SGD(0.1, momentum=0.9))

    def call(images: Any) -> Any:
        return trained.call(images if isinstance(images, dict) else halves(images))

    return replace(trained, call=call)


def two_outputs() -> Trained:
    """A model with two outputs, and a loss for each."""
    layers = keras.layers
    inputs = layers.Input([8, 8, 1])
    x = layers.Dense(16, activation="tanh")(layers.Flatten()(inputs))
    kind = layers.Dense(10)(layers.Dense(16, activation="relu")(x))
    model = keras.Model(inputs, [kind, layers.Dense(1)(x)])

    def loss(labels: Any, outputs: Any) -> Any:
        logits, size = outputs
        wanted = tf.cast(labels, tf.float32)[:, tf.newaxis] / 10
        return cross_entropy(labels, logits) + tf.reduce_mean((size - wanted) ** 2)

    trained = from_keras(model, keras.optimizers.SGD(0.1, momentum=0.9))
    return replace(trained, loss=loss)


def shared() -> Trained:
    """A model that calls one layer twice, with another layer between the calls."""
    layers = keras.layers
    repeated = layers.Dense(16, activation="tanh")
    inputs = layers.Input([8, 8, 1])
    x = repeated(layers.Dense(16, activation="tanh")(layers.Flatten()(inputs)))
    x = repeated(layers.Dense(16, activation="relu")(x))
    model = keras.Model(inputs, layers.Dense(10)(layers.Dense(16, activation="relu")(x)))
    return from_keras(model, keras.optimizers.SGD(0.1, momentum=0.9))


def half_precision() -> Trained:
    """A model in mixed precision, whose loss is scaled."""
    layers = keras.layers
    model = keras.Sequential([layers.Input([8, 8, 1]), layers.Flatten()])
    for _ in range(3):
        model.add(layers.Dense(16, activation="tanh", dtype="mixed_float16"))
    model.add(layers.Dense(10, dtype="float32"))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), 8.0)
    return from_keras(model, optimizer, scaled=optimizer.scale_loss)


def with_slots() -> Trained:
    """A chain of layers in plain TensorFlow, which Adam trains."""
    return replace(deep(4), optimizer=keras.optimizers.Adam(1e-2))


KINDS = {
    "convolutional": convolutional,
    "residual": models.branching,
    "attention": attention,
    "recurrent": recurrent,
    "embedding": models.embedded,
    "two inputs": two_inputs,
    "two outputs": two_outputs,
    "shared layers": shared,
    "mixed precision": half_precision,
    "batch norm": models.normalized,
}
# Kinds that three ranks train: these are traced in the least time. Two ranks train the others.
WITH_THREE_RANKS = ("embedding", "two inputs", "two outputs", "shared layers", "batch norm")


def kinds_of_job(world_size: int) -> tuple[str, ...]:
    """Returns the names of the kinds that a job of two or three ranks trains."""
    return tuple(name for name in KINDS if (name in WITH_THREE_RANKS) == (world_size == 3))
