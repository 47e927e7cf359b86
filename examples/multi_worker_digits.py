"""Trains on handwritten digits under TensorFlow's own strategy of several workers, with a plan.

Each worker is started by itself, and says who it is; on one host, two of them:

    workers='"cluster": {"worker": ["127.0.0.1:23450", "127.0.0.1:23451"]}'
    TF_CONFIG="{$workers, \\"task\\": {\\"type\\": \\"worker\\", \\"index\\": 0}}" \\
        python examples/multi_worker_digits.py &
    TF_CONFIG="{$workers, \\"task\\": {\\"type\\": \\"worker\\", \\"index\\": 1}}" \\
        python examples/multi_worker_digits.py

Horovod is not needed. What TF-Libra adds is one line over the step that calls `strategy.run`.
"""

import json
import os

TASK = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"index": 0})
# One worker per core and one thread for its ops: else two workers measure the scheduler.
CORES = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {CORES[int(TASK["index"]) % len(CORES)]})
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from absl import app, flags  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from sklearn.model_selection import train_test_split  # noqa: E402

import tf_libra  # noqa: E402

_STRATEGY = flags.DEFINE_string("strategy", "libra", "What plans the all-reduces.")
_EPOCHS = flags.DEFINE_integer("epochs", 6, "Passes over the training data.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 32, "Images per step and worker.", lower_bound=1)


def build_model() -> keras.Model:
    """A small convolutional network with batch normalization."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(512, activation="relu"),
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
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    train, (test_x, test_y) = load_data()
    joint = _BATCH.value * strategy.num_replicas_in_sync
    images = tf.data.Dataset.from_tensor_slices(train).shuffle(2000, seed=0)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = images.batch(joint, drop_remainder=True).with_options(options)
    dataset = strategy.experimental_distribute_dataset(batches)

    with strategy.scope():
        model = build_model()
        optimizer = keras.optimizers.Adam(1e-3)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def replica_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = loss_of(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=joint)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf_libra.optimize(_STRATEGY.value)  # this line
    @tf.function
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        losses = strategy.run(replica_step, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    for epoch in range(_EPOCHS.value):
        losses = [float(train_step(images, labels)) for images, labels in dataset]
        if TASK["index"] == 0:
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}")
    # On every worker: variables that the strategy aggregates are read by all of them together.
    accuracy = np.mean(np.argmax(model(test_x, training=False), axis=1) == test_y)
    if TASK["index"] == 0:
        print(f"accuracy {accuracy:.3f}")
        print(train_step.explain())


if __name__ == "__main__":
    app.run(main)
