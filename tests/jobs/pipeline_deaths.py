"""Loses the last rank in a microbatch of its fourth step: `pipeline_deaths.py HOW`.

HOW is one of
  kill: SIGKILL.
  stop: SIGSTOP; the others wait for 3 seconds.
  raise: the stage's own code raises.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from harness import RANK, SIZE, write_json

import tf_libra

sys.path.insert(1, str(Path(__file__).resolve().parents[2]))
from tests.model_parallel.job import batches

[HOW] = sys.argv[1:]
FATAL_STEP, MICROBATCHES = 4, 4
LAST = SIZE - 1


class Model:
    """A model with one layer per rank, which reports each computation."""

    def __init__(self) -> None:
        self.step = 0
        self.computed = 0
        self.weights = [
            tf.Variable(tf.random.stateless_normal([64, 64], [i, 1]) / 8, name=f"weight{i}")
            for i in range(SIZE)
        ]

    def incident(self, x: np.ndarray) -> np.ndarray:
        if RANK == LAST and self.step == FATAL_STEP:
            self.computed += 1
            if self.computed == 2:  # a microbatch in the middle of the step
                happen()
        return x

    def train_step(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            x = tf.reshape(images, [-1, 64])
            for weight in self.weights:
                x = tf.tanh(x @ weight)
                seen = tf.numpy_function(self.incident, [tf.stop_gradient(x[0, 0])], tf.float32)
                x = tf_libra.boundary(x + 0.0 * tf.ensure_shape(seen, []))
            loss = tf.reduce_mean(x**2)
        for weight, gradient in zip(self.weights, tape.gradient(loss, self.weights), strict=True):
            weight.assign_sub(gradient)
        return loss


def happen() -> None:
    write_json("incident", {"pid": os.getpid(), "time": time.time()})
    if HOW == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif HOW == "stop":
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return
    raise ValueError("the image cannot be decoded")


def main() -> None:
    hvd.init()
    model = Model()
    options: dict[str, Any] = {"timeout_seconds": 15.0} if HOW == "stop" else {}
    strategy = tf_libra.strategies.Spp(num_microbatches=MICROBATCHES, num_stages=SIZE)
    train_step = tf_libra.optimize(strategy, **options)(tf.function(model.train_step))
    result: dict[str, Any] = {"done": 0, "errors": [], "times": []}
    images, labels = batches(1, 4 * SIZE)[0]
    own = slice(4 * RANK, 4 * RANK + 4)
    for number in range(1, 8):
        model.step = number
        try:
            train_step(images[own], labels[own])
            result["done"] += 1
        except Exception as error:
            result["errors"].append(f"{type(error).__name__}: {error}")
            result["times"].append(time.time())
            result["stages"] = [list(stage.devices) for stage in train_step.plan.stages]
            write_json("deaths", result)
            if len(result["errors"]) == 2:
                # A training script that does not catch the error ends here.
                raise


if __name__ == "__main__":
    main()
