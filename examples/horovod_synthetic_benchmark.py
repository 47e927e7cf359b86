"""Images per second on random data, in the shape of Horovod's synthetic benchmarks.

    tf-libra run -np 2 python examples/horovod_synthetic_benchmark.py --model MobileNetV2

`--strategy none` trains without TF-Libra, so that Horovod alone averages.
"""

import os
import timeit

# One worker per core and one thread for its ops: else two workers measure the scheduler.
CORES = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {CORES[int(os.environ.get("HOROVOD_LOCAL_RANK", 0)) % len(CORES)]})
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow as hvd  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from absl import app, flags  # noqa: E402

import tf_libra  # noqa: E402

_MODEL = flags.DEFINE_string("model", "MobileNetV2", "A model of tf.keras.applications.")
_SIDE = flags.DEFINE_integer("image_size", 96, "Pixels per side.", lower_bound=32)
_BATCH = flags.DEFINE_integer("batch_size", 8, "Images per step and worker.", lower_bound=1)
_WARMUP = flags.DEFINE_integer("num_warmup_batches", 110, "Not counted; tuning is among them.")
_PER_ITERATION = flags.DEFINE_integer("num_batches_per_iter", 10, "Steps per figure.")
_ITERATIONS = flags.DEFINE_integer("num_iters", 10, "Figures.", lower_bound=1)
_FP16 = flags.DEFINE_bool("fp16_allreduce", False, "Send gradients as float16.")
_STRATEGY = flags.DEFINE_string("strategy", "libra", "What plans; none for Horovod alone.")
_ENGINE = flags.DEFINE_string("engine", "auto", "What executes the plan.")


def main(_) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hvd.init()
    tf.keras.utils.set_random_seed(0)  # the same initial weights on every worker
    shape = (_SIDE.value, _SIDE.value, 3)
    make = getattr(tf.keras.applications, _MODEL.value)
    model = make(weights=None, input_shape=shape, classes=1000)
    variables = [tensor.value for tensor in model.trainable_variables]
    optimizer = tf.keras.optimizers.SGD(0.01)
    images = tf.random.uniform((_BATCH.value, *shape))
    target = tf.random.uniform((_BATCH.value,), maxval=1000, dtype=tf.int64)
    compression = hvd.Compression.fp16 if _FP16.value else hvd.Compression.none

    @tf.function
    def benchmark_step():
        with tf.GradientTape() as tape:
            probabilities = model(images, training=True)
            loss = tf.reduce_mean(
                tf.keras.losses.sparse_categorical_crossentropy(target, probabilities)
            )
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        # Plain variables, which Horovod's tape knows without TF-Libra, too.
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    if _STRATEGY.value != "none":
        benchmark_step = tf_libra.optimize(_STRATEGY.value, engine=_ENGINE.value)(benchmark_step)

    def log(text: str) -> None:
        if hvd.rank() == 0:
            print(text, flush=True)

    log(f"model: {_MODEL.value}, {model.count_params():,} parameters")
    log(f"batch size: {_BATCH.value}, workers: {hvd.size()}")
    for _ in range(_WARMUP.value):
        benchmark_step()
    rates = []
    for iteration in range(_ITERATIONS.value):
        seconds = timeit.timeit(benchmark_step, number=_PER_ITERATION.value)
        rates.append(_BATCH.value * _PER_ITERATION.value / seconds)
        log(f"iteration {iteration}: {rates[-1]:.1f} images/s per worker")
    log(f"images/s per worker: {np.mean(rates):.1f} +- {1.96 * np.std(rates):.1f}")
    log(f"total on {hvd.size()} worker(s): {hvd.size() * np.mean(rates):.1f}")
    if _STRATEGY.value != "none":
        log(benchmark_step.explain())


if __name__ == "__main__":
    app.run(main)
