"""A Horovod script as it is usually written, with one line more: the decorator.

    tf-libra run -np 2 python examples/horovod_mnist.py

The digits are those of scikit-learn: 1,797 grey images of 8x8 pixels, no download.
"""

import os

# One worker per core and one thread for its ops: else two workers measure the scheduler.
CORES = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {CORES[int(os.environ.get("HOROVOD_LOCAL_RANK", 0)) % len(CORES)]})
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow as hvd  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from absl import app, flags  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

import tf_libra  # noqa: E402

_STEPS = flags.DEFINE_integer("steps", 400, "Training steps, over all workers.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 32, "Images per step and worker.", lower_bound=1)
_FP16 = flags.DEFINE_bool("fp16_allreduce", False, "Send gradients as float16.")
_STRATEGY = flags.DEFINE_string("strategy", "libra", "What plans the all-reduces.")
_ENGINE = flags.DEFINE_string("engine", "auto", "What executes them.")


def main(_) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hvd.init()

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype(np.float32) / 16
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.repeat().shuffle(2000, seed=hvd.rank())
    dataset = dataset.batch(_BATCH.value, drop_remainder=True)

    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(512, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # The learning rate grows with the joint batch.
    optimizer = tf.keras.optimizers.Adam(0.001 * hvd.size())
    compression = hvd.Compression.fp16 if _FP16.value else hvd.Compression.none

    @tf_libra.optimize(_STRATEGY.value, engine=_ENGINE.value, broadcast_variables="always")
    @tf.function
    def training_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        # Shown, not trained on: Horovod averages it as before.
        return hvd.allreduce(loss)

    steps = max(_STEPS.value // hvd.size(), 1)
    for step, (some_images, some_labels) in enumerate(dataset.take(steps), start=1):
        loss = training_step(some_images, some_labels)
        if (step % 20 == 0 or step == steps) and hvd.rank() == 0:
            print(f"step {step}: loss {float(loss):.4f} ({training_step.phase})", flush=True)
    if hvd.rank() == 0:
        correct = np.argmax(model.predict(images, verbose=0), axis=1) == labels
        print(training_step.explain())
        print(f"accuracy on what it was trained on: {correct.mean():.2%}")


if __name__ == "__main__":
    app.run(main)
