"""Steps under a given plan in traces that a user takes: `traced.py PLAN.json`."""

import sys
import time

import horovod.tensorflow as hvd
import keras
import models
import tensorflow as tf
from harness import FOLDER, RANK, SIZE, Cases

import tf_libra.keras
from tf_libra.backends import engine as engine_lib

cases = Cases()
PLAN_FILE = sys.argv[1]
# What has no place in the profiler's own syntax.
HOSTILE = "a#b=c,d;e'f%(é\n😀" + "x" * 300
# After those that rank 0 traces itself.
WARM_UP = 8


def data(number: int):
    return models.part(models.batch(number, SIZE, "float32"), RANK, SIZE)


@cases
def profiler():
    """Three steps under tf.profiler, and a log directory."""
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize(plan=PLAN_FILE, logdir=FOLDER / "run")(tf.function(model.step))
    for number in range(WARM_UP):
        step(*data(number))
    engine = engine_lib.running()
    engine.drain_telemetry()
    tf.profiler.experimental.start(str(FOLDER / f"profiler.{RANK}"))
    start_ns = time.time_ns()
    for number in range(3):
        with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
            step(*data(number))
    tf.profiler.experimental.stop()
    return {
        "plan_id": step.plan.short_id,
        "start_ns": start_ns,
        "telemetry": [
            {
                "step": r.step,
                "sequence": r.sequence,
                "group": r.group,
                "num_threads": r.num_threads,
                "num_bytes": r.num_bytes,
                "tensor_names": r.tensor_names,
                "enqueued_ns": r.enqueued_ns,
                "started_ns": r.started_ns,
                "first_byte_ns": r.first_byte_ns,
                "finished_ns": r.finished_ns,
            }
            for r in sorted(engine.drain_telemetry(), key=lambda r: r.sequence)
        ],
    }


@cases
def keras_callback():
    """Steps of `fit` under the callback of Keras."""
    model = models.Keras("float32", "sgd").model
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fitting = tf_libra.keras.optimize(model, "syneasgd", max_tuning_steps=8)
    batches = [data(number) for number in range(20)]
    dataset = tf.data.Dataset.from_generator(
        lambda: batches,
        output_signature=tuple(tf.TensorSpec(x.shape, x.dtype) for x in batches[0]),
    )
    callback = keras.callbacks.TensorBoard(str(FOLDER / f"keras.{RANK}"), profile_batch=(12, 16))
    model.fit(dataset, steps_per_epoch=20, verbose=0, callbacks=[callback])
    plan = fitting.plan
    return {
        "plan_id": plan.short_id,
        "num_bytes": dict(zip(plan.tensor_names, plan.num_bytes, strict=True)),
    }


@cases
def hostile_name():
    """A variable named to break out of the profiler's syntax; one step in the trace."""
    variable = tf.Variable([1.0, 2.0])
    variable.path = HOSTILE

    def train(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * x)
        variable.assign_sub(tape.gradient(loss, variable))
        return loss

    step = tf_libra.optimize("wfbp", max_tuning_steps=1)(tf.function(train))
    for _ in range(WARM_UP):
        step(tf.constant([1.0, 2.0]))
    tf.profiler.experimental.start(str(FOLDER / f"hostile.{RANK}"))
    step(tf.constant([1.0, 2.0]))
    tf.profiler.experimental.stop()
    return list(step.plan.tensor_names)


hvd.init()
cases.run()
