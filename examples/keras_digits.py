"""Trains on handwritten digits with Keras' own `fit`, data-parallel, under a LIBRA plan.

    tf-libra run -np 2 python examples/keras_digits.py

What TF-Libra adds is one line between `compile` and `fit`, and two callbacks.
"""

import os

# One worker per core and one thread for its ops: else two workers measure the scheduler.
CORES = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {CORES[int(os.environ.get("LOCAL_RANK", 0)) % len(CORES)]})
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from absl import app, flags  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from sklearn.model_selection import train_test_split  # noqa: E402

import tf_libra.keras  # noqa: E402

_STRATEGY = flags.DEFINE_string("strategy", "libra", "What plans the all-reduces.")
_EPOCHS = flags.DEFINE_integer("epochs", 12, "Passes over the training data.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 32, "Images per step and worker.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps_per_execution", 4, "Steps in one graph.", lower_bound=1)


def build_model() -> keras.Model:
    """A small convolutional network with dropout."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(512, activation="relu"),
            layers.Dropout(0.3),
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


def main(_) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    (train_x, train_y), test = load_data()
    # Equally many images for every rank, and so equally many steps.
    count = len(train_x) // tf_libra.size()
    mine = slice(tf_libra.rank() * count, (tf_libra.rank() + 1) * count)

    model = build_model()
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=_STEPS.value,
    )
    # Every rank draws initial weights of its own; rank 0's are taken.
    fitting = tf_libra.keras.optimize(model, _STRATEGY.value, broadcast_variables="always")
    model.fit(
        train_x[mine],
        train_y[mine],
        batch_size=_BATCH.value,
        epochs=_EPOCHS.value,
        validation_data=test,
        callbacks=[
            tf_libra.keras.AverageMetrics(),
            keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=2),
        ],
        verbose=2 if tf_libra.rank() == 0 else 0,
    )
    if tf_libra.rank() == 0:
        print(fitting.explain())


if __name__ == "__main__":
    app.run(main)
