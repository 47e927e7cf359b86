"""Resident memory of a pipeline with variables of all stages, without them, and again with them."""

import time

import harness
import horovod.tensorflow as hvd
import tensorflow as tf

import tf_libra
from tf_libra.strategies import GPipe

cases = harness.Cases()
WIDE = 2000  # large enough that each variable is mapped by itself, and unmapped when it is freed
LAYERS = 4
PART = 0.8  # least decrease of memory, relative to the variables of other stages


@cases
def memory():
    weights = [
        tf.Variable(tf.random.stateless_normal([WIDE, WIDE], [i, 1]) / WIDE, name=f"wide{i}")
        for i in range(LAYERS)
    ]
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(weights)

    def train_step(inputs):
        with tf.GradientTape() as tape:
            x = inputs
            for weight in weights:
                x = tf_libra.boundary(tf.tanh(x @ weight))
            loss = tf.reduce_mean(x**2)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    # The same number of layers on each rank.
    strategy = GPipe(num_microbatches=2, num_stages=2)
    step = tf_libra.optimize(strategy)(tf.function(train_step))

    def train():
        for _ in range(3):
            step(tf.ones([2, WIDE]))

    train()
    step.synchronize_variables()
    found = {"before": harness.resident_bytes()}
    train()
    found["released"] = harness.resident_bytes()
    stage = next(stage for stage in step.plan.stages if harness.RANK in stage.devices)
    found["others"] = (LAYERS - (stage.stop - stage.start)) * 2 * 4 * WIDE * WIDE
    # Threads of the step may free its memory shortly after it has returned.
    until = time.monotonic() + 60
    while (
        found["before"] - found["released"] <= PART * found["others"] and time.monotonic() < until
    ):
        time.sleep(0.05)
        found["released"] = harness.resident_bytes()
    step.synchronize_variables()
    found["back"] = harness.resident_bytes()
    return found


if __name__ == "__main__":
    hvd.init()
    cases.run()
