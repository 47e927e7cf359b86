"""Models of a few dense layers, for flags such as `--model=tests/benchmarks/tiny_models.py:three`.

Each function returns a model with one, three or six hidden layers, a batch, and its loss.
"""

from typing import Any

import numpy as np


def one() -> Any:
    return _model(1)


def three() -> Any:
    return _model(3)


def six() -> Any:
    return _model(6)


def _model(num_hidden: int) -> Any:
    import keras

    layers = [keras.layers.Dense(16) for _ in range(num_hidden)]
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(4)])
    data = np.random.default_rng(0)
    loss = keras.losses.sparse_categorical_crossentropy
    return model, data.random((4, 8), np.float32), data.integers(4, size=4), loss
