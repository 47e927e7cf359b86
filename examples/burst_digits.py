"""Trains a convolutional network on handwritten digits in bursts, with a concurrent job.

    tf-libra run -np 2 python examples/burst_digits.py

The step is that of one device. Each layer runs on as many workers as it is worth, up to a limit on
what that takes of all of them; what they leave idle is for a search of random features
(random_features.py), which may make steps longer by `--slowdown` (docs/burst.md).
"""

import os

# One worker per core and one thread for its ops: else two workers measure the scheduler.
CORES = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {CORES[int(os.environ.get("LOCAL_RANK", 0)) % len(CORES)]})
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import random_features  # noqa: E402
import tensorflow as tf  # noqa: E402
from absl import app, flags  # noqa: E402
from digits import batches, build_model, load_data  # noqa: E402

import tf_libra  # noqa: E402

# Those of digits.py, too: --epochs, --batch and --logdir.
_AMPLIFICATION = flags.DEFINE_float("amplification", 1.5, "Of every layer, at most.", 1)
_SLOWDOWN = flags.DEFINE_float(
    "slowdown", 0.05, "Largest mean slowdown of steps by the job, as a share."
)


def main(_) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    keras.utils.set_random_seed(0)
    model = build_model()
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    bursts = tf_libra.strategies.DeepPool(max_amplification=_AMPLIFICATION.value)

    @tf_libra.optimize(bursts, logdir=flags.FLAGS.logdir)
    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    job = tf_libra.background(random_features.try_some, max_slowdown=_SLOWDOWN.value)
    (train_x, train_y), (test_x, test_y) = load_data()
    shares = batches(
        len(train_x), flags.FLAGS.batch, flags.FLAGS.epochs, tf_libra.rank(), tf_libra.size()
    )
    for step, chosen in enumerate(shares, start=1):
        loss = train_step(tf.constant(train_x[chosen]), tf.constant(train_y[chosen]))
        if step % 20 == 0 and tf_libra.rank() == 0:
            print(f"step {step}: loss {float(loss):.4f}")
    job.end()
    train_step.synchronize_variables()
    if tf_libra.rank() == 0:
        print(train_step.explain())
        print(job.describe())
        correct = np.argmax(model.predict(test_x, verbose=0), axis=1) == test_y
        print(f"test accuracy: {correct.mean():.2%} of {len(test_y)} images")


if __name__ == "__main__":
    app.run(main)
