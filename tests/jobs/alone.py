"""One process: passes through; and what is said where Horovod cannot be imported.

`alone.py FOLDER`, the folder holding a package `horovod` that fails.
"""

import logging
import sys
from typing import Any

import models
import numpy as np
import tensorflow as tf
from harness import write_json

import tf_libra
from tf_libra.internal import native


class Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def pass_through() -> dict[str, Any]:
    import horovod.tensorflow as hvd

    hvd.init()
    collector = Collector()
    logging.getLogger("tf_libra").addHandler(collector)
    ours, plain = (models.HandWritten("float64", "sgd") for _ in range(2))
    step = tf_libra.optimize("libra")(tf.function(ours.step))
    reference = tf.function(plain.step)
    for number in range(3):
        step(*models.batch(number, 1, "float64"))
        reference(*models.batch(number, 1, "float64"))
    return {
        "phase": str(step.phase),
        "plan": step.plan,
        "explained": step.explain(),
        "log": list(collector.messages),
        "same": all((ours.weights()[k] == v).all() for k, v in plain.weights().items()),
    }


def fit_in_stages() -> dict[str, Any]:
    import horovod.tensorflow as hvd
    import keras

    import tf_libra.keras

    hvd.init()
    layers = [keras.layers.Dense(3), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((2,)), *layers])
    model.compile("sgd", "mse")
    before = model.get_weights()
    fitting = tf_libra.keras.optimize(model, tf_libra.strategies.Spp(num_microbatches=2))
    data = np.ones((8, 2)), np.ones((8, 1))
    model.fit(*data, batch_size=4, verbose=0)  # which finds that it is alone
    requested = sum(native.load.cache_info()[:2])
    model.fit(*data, batch_size=4, epochs=2, verbose=0)
    return {
        "phase": fitting.phase,
        "trained": not np.allclose(before[0], model.get_weights()[0]),
        "libraries": sum(native.load.cache_info()[:2]) - requested,
    }


def first_step_error() -> str:
    model = models.HandWritten("float64", "sgd")
    step = tf_libra.optimize("libra")(tf.function(model.step))
    try:
        step(*models.batch(0, 1, "float64"))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def forget_horovod() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "horovod"]:
        del sys.modules[name]


if __name__ == "__main__":
    results: dict[str, Any] = {"pass_through": pass_through(), "fit_in_stages": fit_in_stages()}
    forget_horovod()
    sys.path.insert(0, sys.argv[1])
    results["broken_horovod"] = first_step_error()
    forget_horovod()
    sys.modules["horovod"] = None  # type: ignore[assignment]  # as if not installed
    results["missing_horovod"] = first_step_error()
    write_json("alone", results)
