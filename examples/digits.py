"""Trains a convolutional network on handwritten digits, data-parallel, under a LIBRA plan.

    tf-libra run -np 2 python examples/digits.py

The data ship with scikit-learn: 1,797 grey images of 8x8 pixels. Every worker trains on its own
share of every batch; what TF-Libra adds is one line below `train_step`. At the end its steps take
turns with those of one worker that trains the joint batch alone.
"""

import importlib
import logging
import os
from functools import partial
from pathlib import Path

# One worker per core and one thread for its ops: else two workers measure the scheduler.
CORES = sorted(os.sched_getaffinity(0))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK") or os.environ.get("HOROVOD_LOCAL_RANK") or 0)
os.sched_setaffinity(0, {CORES[LOCAL_RANK % len(CORES)]})
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from absl import app, flags  # noqa: E402
from absl import logging as absl_logging  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from sklearn.model_selection import train_test_split  # noqa: E402

import tf_libra  # noqa: E402

# Only `tf-libra run --horovod` starts ranks of Horovod, which the comparison then includes.
HOROVOD = importlib.import_module("horovod.tensorflow") if "HOROVOD_RANK" in os.environ else None

_STRATEGY = flags.DEFINE_string("strategy", "libra", "What plans the all-reduces.")
_EPOCHS = flags.DEFINE_integer("epochs", 20, "Passes over the training data.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 64, "Images per step, over all workers.", lower_bound=1)
_LOGDIR = flags.DEFINE_string("logdir", "build/digits", "Folder for plan, profile and model.")


def build_model() -> keras.Model:
    """2.4 M parameters."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(128, 3, padding="same", activation="relu"),
            layers.Conv2D(128, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(1024, activation="relu"),
            layers.Dense(1536, activation="relu"),
            layers.Dense(10),
        ]
    )


def load_data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Training and test data: images of shape (count, 8, 8, 1) in [0, 1], labels."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype(np.float32) / 16
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )
    return (train_x, train_y), (test_x, test_y)


def batches(count: int, batch: int, epochs: int, rank: int, size: int):
    """This worker's share of every joint batch, as indices; the same batches on every worker."""
    share = batch // size
    random = np.random.default_rng(0)
    for _ in range(epochs):
        order = random.permutation(count)
        for start in range(0, count - batch + 1, batch):
            yield order[start + rank * share : start + (rank + 1) * share]


def compare(train_step, optimized, joint_batch, share) -> None:
    """Prints how much faster the workers are than one of them that trains the joint batch alone.

    Args:
        train_step: function of the step, without TF-Libra.
        optimized: the step under the active plan.
        joint_batch: images and labels of all workers.
        share: this worker's part of them, a slice.
    """
    if tf_libra.size() == 1 or optimized.plan is None:
        print("no comparison: it needs two workers and an active plan")
        return
    optimized.close()  # its summary is that of the training
    logging.getLogger("tf_libra").setLevel(logging.WARNING)
    joint = [tf.constant(part) for part in joint_batch]
    batch = [tf.constant(part[share]) for part in joint_batch]
    merged = tf_libra.optimize("syneasgd", progress=False)(tf.function(train_step))
    while not merged.settled:
        merged(*batch)
    alone = tf.function(train_step)
    steps = {
        "one worker": lambda: alone(*joint) if tf_libra.rank() == 0 else None,
        "one all-reduce after backward": lambda: merged(*batch),
        f"the active plan, by {optimized.plan.strategy}": lambda: optimized(*batch),
    }
    if HOROVOD is not None:
        horovod = tf.function(partial(train_step, average=HOROVOD.grouped_allreduce))
        steps["Horovod"] = lambda: horovod(*batch)
    compared = tf_libra.compare_steps(steps)
    if tf_libra.rank() == 0:
        print("speedup over one worker on the same joint batch (95 % interval), median step:")
        print(compared.describe("one worker"))
        if round(compared.speedup(list(steps)[2], "one worker").high, 2) < 1:  # as it is printed
            print(f"One worker is faster than {tf_libra.size()} workers on this machine.")


def main(_) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    # Lines of the log without absl's times.
    absl_logging.get_absl_handler().setFormatter(logging.Formatter("%(name)s: %(message)s"))
    if HOROVOD is not None:
        HOROVOD.init()
    rank, size = tf_libra.rank(), tf_libra.size()
    if _BATCH.value % size:
        raise ValueError(f"--batch must be a multiple of the {size} workers: {_BATCH.value}")
    keras.utils.set_random_seed(0)  # the same initial weights on every worker
    model = build_model()
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train_step(images, labels, average=list):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = average(tape.gradient(loss, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    optimized = tf_libra.optimize(_STRATEGY.value, logdir=_LOGDIR.value)(tf.function(train_step))

    (train_x, train_y), (test_x, test_y) = load_data()
    if rank == 0:
        print(
            f"{model.count_params():,} parameters, {len(train_x)} images to train on,"
            f" {size} worker(s)"
        )
    shares = batches(len(train_x), _BATCH.value, _EPOCHS.value, rank, size)
    for step, chosen in enumerate(shares, start=1):
        loss = optimized(tf.constant(train_x[chosen]), tf.constant(train_y[chosen]))
        if step % 50 == 0 and rank == 0:
            print(f"step {step}: loss {float(loss):.4f} ({optimized.phase})")
    if rank == 0:
        correct = np.argmax(model.predict(test_x, verbose=0), axis=1) == test_y
        print(optimized.explain())
        if optimized.plan is not None:
            print(f"plan: {Path(_LOGDIR.value, 'plan.json')}")
        print(f"test accuracy: {correct.mean():.2%} of {len(test_y)} images")
    joint_batch = (train_x[: _BATCH.value], train_y[: _BATCH.value])
    share = _BATCH.value // size
    own = slice(rank * share, (rank + 1) * share)
    compare(train_step, optimized, joint_batch, own)


if __name__ == "__main__":
    app.run(main)
