"""Models to measure training steps of, each with one batch of random data.

A builder takes no arguments and returns `(keras_model, inputs, labels, loss)`: a built Keras model,
one rank's batch as arrays (or nests of arrays), and `loss(labels, outputs)`.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Built = tuple[Any, Any, Any, Callable[[Any, Any], Any]]


def mlp() -> Built:
    """Five dense layers, 14.2 M parameters: large gradients, little computation."""
    keras, layers = _keras()
    model = keras.Sequential([keras.Input((784,))])
    for units in (2048, 2048, 2048, 2048):
        model.add(layers.Dense(units, activation="relu"))
    model.add(layers.Dense(10))
    return model, _images(64, 784), _classes(10, 64), _cross_entropy()


def cnn5m() -> Built:
    """Eight convolutions, three dense layers, 5.4 M parameters: 4.2 M of them come first."""
    keras, layers = _keras()
    model = keras.Sequential([keras.Input((32, 32, 3))])
    for filters in (32, 64, 128, 256):
        for _ in range(2):
            model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D(2))
    model.add(layers.Flatten())
    for units in (2048, 1024):
        model.add(layers.Dense(units, activation="relu"))
    model.add(layers.Dense(10))
    return model, _images(16, 32, 32, 3), _classes(10, 16), _cross_entropy()


def vgg() -> Built:
    """VGG-11 (Simonyan and Zisserman 2015) for 32x32 images, half as wide: 5.1 M parameters."""
    return _vgg((1, 1, 2, 2, 2))


def vgg13() -> Built:
    """VGG-13, the same with two convolutions more."""
    return _vgg((2, 2, 2, 2, 2))


def _vgg(depths: tuple[int, ...]) -> Built:
    keras, layers = _keras()
    model = keras.Sequential([keras.Input((32, 32, 3))])
    for filters, convolutions in zip((32, 64, 128, 256, 256), depths, strict=True):
        for _ in range(convolutions):
            model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D(2))
    model.add(layers.Flatten())
    for _ in range(2):
        model.add(layers.Dense(1536, activation="relu"))
    model.add(layers.Dense(10))
    return model, _images(16, 32, 32, 3), _classes(10, 16), _cross_entropy()


def resnet20() -> Built:
    """ResNet-20 for 32x32 images (He et al. 2015, section 4.2): many small gradients."""
    keras, layers = _keras()

    def normalized(x: Any, filters: int, stride: int) -> Any:
        x = layers.Conv2D(filters, 3, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    images = keras.Input((32, 32, 3))
    x = layers.ReLU()(normalized(images, 16, 1))
    for filters in (16, 32, 64):
        for block in range(3):
            stride = 2 if filters > 16 and block == 0 else 1
            shortcut = x if stride == 1 else layers.Conv2D(filters, 1, stride, use_bias=False)(x)
            x = layers.ReLU()(normalized(x, filters, stride))
            x = layers.ReLU()(layers.Add()([normalized(x, filters, 1), shortcut]))
    model = keras.Model(images, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    return model, _images(16, 32, 32, 3), _classes(10, 16), _cross_entropy()


def transformer() -> Built:
    """A language model of four pre-norm blocks, 256 wide, over 4096 tokens: 5.3 M parameters."""
    keras, layers = _keras()
    length, width, vocabulary = 64, 256, 4096
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(tokens)
    for _ in range(4):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(8, width // 8)(y, y, use_causal_mask=True)
        x = layers.Add()([x, y])
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(y)])
    model = keras.Model(tokens, layers.Dense(vocabulary)(layers.LayerNormalization()(x)))
    text = _classes(vocabulary, 4, length + 1)
    return model, text[:, :-1], text[:, 1:], _cross_entropy()


def embedding() -> Built:
    """One table of 12.8 M parameters, whose gradient is made dense, and few other parameters."""
    keras, layers = _keras()
    rows, width, length = 100_000, 128, 16
    tokens = keras.Input((length,), dtype="int32")
    # By a dense product: the gradient of a lookup would be rows, which are gathered.
    table = layers.Dense(width, use_bias=False)
    x = table(layers.CategoryEncoding(rows, output_mode="multi_hot")(tokens))
    model = keras.Model(tokens, layers.Dense(10)(layers.Dense(64, activation="relu")(x)))
    return model, _classes(rows, 16, length), _classes(10, 16), _cross_entropy()


def lookup() -> Built:
    """The table of `embedding`, from which each batch looks up 4096 rows: a sparse gradient."""
    keras, layers = _keras()
    rows, width, length = 100_000, 128, 64
    tokens = keras.Input((length,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(rows, width)(tokens))
    model = keras.Model(tokens, layers.Dense(10)(layers.Dense(64, activation="relu")(x)))
    return model, _classes(rows, 64, length), _classes(10, 64), _cross_entropy()


MODELS: dict[str, Callable[[], Built]] = {
    builder.__name__: builder
    for builder in (mlp, cnn5m, vgg, vgg13, resnet20, transformer, embedding, lookup)
}


def find(model: str) -> Callable[[], Built]:
    """Returns the builder of a model of this file, or of `file.py:function`, which is imported.

    Raises:
        ValueError: there is no such model, file or function.
    """
    if model in MODELS:
        return MODELS[model]
    path, _, function = model.rpartition(":")
    if not path:
        known = ", ".join(MODELS)
        raise ValueError(f"must be one of {known}, or file.py:function; got {model!r}")
    spec = importlib.util.spec_from_file_location("benchmarks_given_model", path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise ValueError(f"must name a Python file, as in file.py:function; {path!r} is none")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    builder = getattr(module, function, None)
    if not callable(builder):
        raise ValueError(f"must name a function of {path}; it has no {function!r}")
    return builder


def build(model: str) -> Built:
    """Builds what `find` finds.

    Raises:
        ValueError: as for `find`, or the function returns something else.
    """
    built = find(model)()
    if not (isinstance(built, tuple) and len(built) == 4):
        raise ValueError(f"model: {model} must return (keras_model, inputs, labels, loss)")
    keras, _ = _keras()
    if not (isinstance(built[0], keras.Model) and built[0].trainable_variables):
        raise ValueError(f"model: keras_model of {model} must be a Keras model that has weights")
    if not callable(built[3]):
        raise ValueError(f"model: loss of {model} must be a function, got {built[3]!r}")
    return built


def _images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape, np.float32)


def _classes(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(count, size=shape)


def _cross_entropy() -> Callable[[Any, Any], Any]:
    keras, _ = _keras()
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _keras() -> tuple[Any, Any]:
    """Keras and its layers, loaded when a model is built: to name models takes no TensorFlow."""
    import tensorflow as tf

    return tf.keras, tf.keras.layers
