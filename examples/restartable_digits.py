"""Trains with checkpoints, so that workers that their launcher starts again continue.

    until tf-libra run -np 2 python examples/restartable_digits.py; do sleep 1; done

If a worker is lost, the others end with an error, and the launcher starts all of them again. They
continue from the last checkpoint under the plan that `cache_dir` holds, without tuning again.
`--kill_at_step=110` ends the last worker there, once, to show it.
"""

import os
import signal

# One worker per core and one thread for its ops: else two workers measure the scheduler.
CORES = sorted(os.sched_getaffinity(0))
LOCAL_RANK = os.environ.get("LOCAL_RANK") or os.environ.get("HOROVOD_LOCAL_RANK") or "0"
os.sched_setaffinity(0, {CORES[int(LOCAL_RANK) % len(CORES)]})
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from absl import app, flags  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

import tf_libra  # noqa: E402

_STEPS = flags.DEFINE_integer("steps", 200, "Training steps.", lower_bound=1)
_EVERY = flags.DEFINE_integer("checkpoint_every", 20, "Steps between checkpoints.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 64, "Images per step, over all workers.", lower_bound=1)
_FOLDER = flags.DEFINE_string("folder", "build/restartable", "Folder of checkpoints and plans.")
_KILL_AT = flags.DEFINE_integer("kill_at_step", None, "Step in which the last worker is killed.")


def joint_batch(step: int, count: int) -> np.ndarray:
    """Returns the images of a step, which depend on nothing but its number."""
    epoch, batch = divmod(step, count // _BATCH.value)
    order = np.random.default_rng(epoch).permutation(count)
    return order[batch * _BATCH.value : (batch + 1) * _BATCH.value]


def main(_) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    rank, size = tf_libra.rank(), tf_libra.size()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((64,))])
    for units in (512, 512, 10):
        model.add(keras.layers.Dense(units, activation="relu" if units > 10 else None))
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf_libra.optimize("libra", cache_dir=f"{_FOLDER.value}/plans")
    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    # Weights, momenta and the number of steps. Rank 0 writes and reads them; the first step copies
    # its variables to the other ranks, which need no access to the folder.
    done = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(
        done=done, weights=model.weights, optimizer=optimizer.variables
    )
    manager = tf.train.CheckpointManager(checkpoint, f"{_FOLDER.value}/checkpoints", max_to_keep=2)
    if rank == 0:
        manager.restore_or_initialize()
    start = done.value()
    if size > 1:
        tf_libra.collectives.connect()
        start = tf_libra.collectives.broadcast(start, 0, range(size), "first step")
    start = int(start)
    if rank == 0:
        print(f"start at step {start} of {_STEPS.value} on {size} worker(s)", flush=True)

    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32) / 16
    for step in range(start, _STEPS.value):
        if step == _KILL_AT.value and start == 0 and rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        chosen = joint_batch(step, len(images))[rank::size]
        loss = train_step(tf.constant(images[chosen]), tf.constant(labels[chosen]))
        if rank == 0 and ((step + 1) % _EVERY.value == 0 or step + 1 == _STEPS.value):
            done.assign(step + 1)
            path = manager.save(checkpoint_number=step + 1)
            print(f"step {step + 1}: loss {float(loss):.4f}", flush=True)
            print(f"checkpoint: {path}", flush=True)


if __name__ == "__main__":
    app.run(main)
