"""Training of ranks that a launcher has started, without Horovod, against one process."""

import sys
import threading
from typing import Any

import keras
import models
import numpy as np
import tensorflow as tf
from harness import FOLDER, RANK, SIZE, Cases

import tf_libra
import tf_libra.keras
from tf_libra.strategies import DeepPool, Spp

STEPS, EPOCHS, SAMPLES = 9, 2, 24
TUNING = {"max_tuning_steps": 4, "progress": False}

cases = Cases()


def alone(steps: int) -> dict[str, np.ndarray]:
    """Weights of one process that trains the joint batches."""
    model = models.HandWritten("float32", "momentum")
    for number in range(steps):
        model.step(*models.batch(number, SIZE, "float32"))
    return model.weights()


def together(strategy: str = "libra", steps: int = STEPS, **options: Any) -> Any:
    """Saves the weights of a step of all ranks, and those of one process."""
    model = models.HandWritten("float32", "momentum")
    step = tf_libra.optimize(strategy, **TUNING | options)(tf.function(model.step))
    for number in range(steps):
        step(*models.part(models.batch(number, SIZE, "float32"), RANK, SIZE))
    save(model.weights(), alone(steps))
    return {"phase": str(step.phase), "settled": step.settled, "explained": step.explain()}


def save(ours: dict[str, Any], alone: dict[str, Any]) -> None:
    """Saves weights by name."""
    named = {f"ours/{name}": value for name, value in ours.items()}
    cases.save(**named, **{f"alone/{name}": value for name, value in alone.items()})


@cases
def places() -> Any:
    own = (tf_libra.rank(), tf_libra.size(), tf_libra.local_rank(), tf_libra.local_size())
    return own


@cases
def hand_written() -> Any:
    return together()


@cases
def cached_plan() -> Any:
    folder = FOLDER / "cache"
    num_steps = []
    for _ in range(2):
        model = models.HandWritten("float32", "momentum")
        step = tf_libra.optimize("libra", cache_dir=folder, progress=False)(tf.function(model.step))
        for number in range(1, 300):
            step(*models.part(models.batch(number, SIZE, "float32"), RANK, SIZE))
            if str(step.phase) == "run":
                break
        num_steps.append(number)
        step.close()
    return num_steps


@cases
def in_a_thread() -> Any:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(together("auto"))
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


def layers() -> Any:
    keras.utils.set_random_seed(3 + RANK)  # rank 0's variables are copied
    return keras.Sequential(
        [
            keras.Input((models.FEATURES,)),
            keras.layers.Dense(16, activation="tanh", name="first"),
            keras.layers.Dense(models.CLASSES, name="last"),
        ]
    )


def compiled() -> Any:
    model = layers()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


def joint(count: int) -> Any:
    """Examples of an epoch, whose last batch is short."""
    inputs, labels = models.batch(0, 1, "float32", shard=count)
    return tf.data.Dataset.from_tensor_slices((inputs, labels))


@cases
def keras_fit() -> Any:
    count = 5 * SIZE * models.SHARD + SIZE * models.SHARD // 2
    ours = compiled()
    fitting = tf_libra.keras.optimize(ours, "libra", max_tuning_steps=4)
    own = joint(count).batch(SIZE).map(lambda x, y: (x[RANK], y[RANK])).batch(models.SHARD)
    history = ours.fit(
        own,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[tf_libra.keras.BroadcastVariables(), tf_libra.keras.AverageMetrics()],
    )
    trained = {v.path: np.asarray(v) for v in ours.trainable_variables}
    everyone = history.history
    keras.backend.clear_session()
    wanted = {}
    if RANK == 0:  # the other ranks were initialized differently
        reference = compiled()
        reference.fit(joint(count).batch(SIZE * models.SHARD), epochs=EPOCHS, verbose=0)
        wanted = {v.path: np.asarray(v) for v in reference.trainable_variables}
    save(trained, wanted)
    return {"phase": str(fitting.phase), "history": everyone}


def staged(strategy: Any, steps: int = STEPS) -> Any:
    """Trains under a strategy of pipelines or of bursts."""
    model = models.Keras("float32", "sgd")
    step = tf_libra.optimize(strategy, progress=False)(tf.function(model.step))
    other = models.Keras("float32", "sgd")
    for number in range(steps):
        batch = models.batch(number, SIZE, "float32")
        step(*models.part(batch, RANK, SIZE))
        other.step(*batch)
    step.synchronize_variables()
    save(model.weights(), other.weights())
    return type(step.plan).__name__


@cases
def pipeline() -> Any:
    return staged(Spp(num_microbatches=2, num_stages=2))


@cases
def burst() -> Any:
    return staged(DeepPool(max_amplification=2.0), steps=16)


@cases
def collectives() -> Any:
    tf_libra.collectives.connect()
    total = tf_libra.collectives.all_reduce(tf.constant([1.0 + RANK]), range(SIZE), "total")
    return float(total[0])


@cases
def engine_of_horovod() -> Any:
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize("libra", engine="horovod")(tf.function(model.step))
    step(*models.part(models.batch(0, SIZE, "float32"), RANK, SIZE))


@cases
def imported() -> Any:
    return sorted(name for name in sys.modules if name.partition(".")[0] == "horovod")


cases.run()
