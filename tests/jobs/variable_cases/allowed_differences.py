"""Variables that may differ between ranks, and differences that only a check finds."""

from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import keras
import models
import numpy as np
import tensorflow as tf
from harness import RANK

import tf_libra
from variable_cases.common import BRIEFLY, STEPS, bits, cases, hand_written, own_seed, shard, train


class Normalized:
    """A Keras model with what differs between ranks by nature, and what does not."""

    def __init__(self) -> None:
        keras.utils.set_random_seed(own_seed())
        layers = keras.layers
        self.frozen = layers.Dense(8, activation="tanh", name="frozen")
        self.frozen.trainable = False
        self.model = keras.Sequential(
            [
                layers.Input((models.FEATURES,)),
                self.frozen,
                layers.BatchNormalization(),
                layers.Dropout(0.1),
                layers.Dense(models.CLASSES),
            ]
        )
        self.optimizer = keras.optimizers.Adam(0.01)
        self.optimizer.build(self.model.trainable_variables)
        self.loss = keras.metrics.Mean(name="loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        self.average = [(tf.Variable(v.value), v) for v in self.model.trainable_variables]
        self.decay = tf.Variable(0.9, trainable=False, name="decay")

    def step(self, inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = self.model(inputs, training=True)
            loss = models.cross_entropy(labels, logits)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.loss.update_state(loss)
        self.accuracy.update_state(labels, logits)
        for average, variable in self.average:
            average.assign(self.decay * average + (1 - self.decay) * variable)
        return loss

    def equal(self) -> list[str]:
        slots = [v for v in self.optimizer.variables if "seed" not in v.path]
        weights = [v for v in self.model.weights if "moving" not in v.path]
        weights = [v for v in weights if "seed" not in v.path]
        return bits([*weights, *slots, *(average for average, _ in self.average)])

    def own(self) -> list[float]:
        moving = [v for v in self.model.weights if "moving_mean" in v.path]
        return [float(tf.reduce_sum(v)) for v in [*moving, self.loss.total]]


@cases
def moving_averages_and_metrics() -> Any:
    """A second function, a thawed layer and a comparison find nothing wrong."""
    model = Normalized()
    step = tf_libra.optimize(**BRIEFLY)(tf.function(model.step))
    train(step)
    step.check_variables()
    again = tf_libra.optimize(broadcast_variables=False, **BRIEFLY)(tf.function(model.step))
    train(again)
    again.check_variables()
    model.frozen.trainable = True
    model.optimizer = keras.optimizers.Adam(0.01)
    thawed = tf_libra.optimize(broadcast_variables=False, **BRIEFLY)(tf.function(model.step))
    train(thawed)
    for function in (step, again, thawed):
        function.check_variables()
    return {"equal": model.equal(), "own": model.own()}


@cases
def keras_compiled_twice() -> Any:
    import tf_libra.keras

    model = Normalized().model
    for _ in range(2):
        model.compile("adam", "mse", metrics=["mae"], jit_compile=False)
        fitting = tf_libra.keras.optimize(model, **BRIEFLY)
        inputs, _ = shard()
        model.fit(inputs, inputs[:, : models.CLASSES], epochs=4, batch_size=4, verbose=0)
        fitting._steps.check_variables()
    return bits(model.trainable_variables)


@cases
def metrics_of_batches_of_different_sizes() -> Any:
    """A metric's count is a constant of the trace, and differs between ranks."""
    model = hand_written(seed=1)
    seen = tf.Variable(0, trainable=False, name="seen")
    counted = tf.Variable(0, trainable=False, name="counted")

    def step(inputs: Any, labels: Any) -> Any:
        seen.assign_add(len(inputs))
        counted.assign_add(1)
        return model.step(inputs, labels)

    step = tf_libra.optimize(**BRIEFLY)(tf.function(step))
    for number in range(6):
        inputs, labels = shard(number)
        rows = 4 - RANK if number < 3 else 4
        step(inputs[:rows], labels[:rows])
    step.check_variables()
    return [int(seen), int(counted)]


@cases
def counter_that_starts_unequal() -> Any:
    model = hand_written(seed=1)
    counted = tf.Variable(10 * RANK, trainable=False, name="counted")

    def step(inputs: Any, labels: Any) -> Any:
        counted.assign_add(1)
        return model.step(inputs, labels)

    train(tf_libra.optimize(**BRIEFLY)(tf.function(step)))
    return int(counted)


def data_of_each_rank(**options: Any) -> Any:
    """Read by the step, as data of its own are; and written by it, as a replay buffer is."""
    model = hand_written(seed=1)
    inputs, labels = shard()
    data = tf.Variable(inputs, trainable=False, name="data")
    buffer = tf.Variable(tf.fill([2, models.FEATURES], float(RANK)), trainable=False, name="buffer")

    def step(new: Any) -> Any:
        buffer[0].assign(new[0])
        return model.step(data, labels)

    step = tf_libra.optimize(**BRIEFLY, **options)(tf.function(step))
    for number in range(STEPS):
        step(shard(number)[0])
    step.check_variables()
    is_unchanged = np.array_equal(data.numpy(), inputs) and float(buffer[1, 0]) == RANK
    return {"kept": bool(is_unchanged), "bits": bits(model.variables)}


@cases
def data_of_each_rank_by_default() -> Any:
    return data_of_each_rank()


@cases
def data_of_each_rank_and_broadcast() -> Any:
    return data_of_each_rank(broadcast_variables=True)


@cases
def data_of_each_rank_and_no_broadcast() -> Any:
    return data_of_each_rank(broadcast_variables=False)


def statistics_of_frozen_layers(*callbacks: Any, **options: Any) -> Any:
    """Rank 0 alone has loaded a frozen layer's statistics; each adapts another to its share."""
    import tf_libra.keras

    keras.utils.set_random_seed(1)
    adapted = keras.layers.Normalization(name="adapted")
    frozen = keras.layers.BatchNormalization(name="frozen")
    top = keras.layers.Dense(models.CLASSES, name="top")
    model = keras.Sequential([keras.Input((models.FEATURES,)), adapted, frozen, top], name="net")
    inputs, labels = shard()
    adapted.adapt(inputs)
    frozen.trainable = False
    if RANK == 0:
        frozen.moving_mean.assign(frozen.moving_mean + 2.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    same = models.batch(9, 1, "float32")[0]
    model.predict(same, verbose=0)  # traced with the statistics of before
    tf_libra.keras.optimize(model, **BRIEFLY, **options)
    model.fit(inputs, labels, epochs=4, batch_size=4, verbose=0, callbacks=callbacks)
    return model.predict(same, verbose=0).tolist()


@cases
def statistics_that_differ() -> Any:
    return statistics_of_frozen_layers()


@cases
def statistics_that_are_named() -> Any:
    return statistics_of_frozen_layers(local_variables=["net/frozen/moving_mean", "net/adapted/*"])


@cases
def statistics_that_are_broadcast() -> Any:
    import tf_libra.keras

    return statistics_of_frozen_layers(tf_libra.keras.BroadcastVariables())


@cases
def own_variables_by_name() -> Any:
    """Rank-local variables that are trainable by oversight, or count."""
    model = hand_written(seed=1)
    inputs = shard()[0]
    data = tf.Variable(inputs, name="rank/data")
    counted = tf.Variable(10 * RANK, trainable=False, name="counted")

    def step(unused: Any, labels: Any) -> Any:
        counted.assign_add(1)
        return model.step(data, labels)

    step = tf_libra.optimize(
        local_variables=["rank/*", counted, "missing*"], broadcast_variables=False, **BRIEFLY
    )(tf.function(step))
    train(step)
    step.check_variables()
    is_unchanged = np.array_equal(data.numpy(), inputs)
    return {"kept": bool(is_unchanged), "counted": int(counted), "bits": bits(model.variables)}


@cases
def trained_by_each_rank_for_itself() -> Any:
    """A trunk that all train, and a head of each rank's."""
    inputs, _ = shard()
    width = int(inputs.shape[1])
    trunk = tf.Variable(tf.ones([width, 3], inputs.dtype), name="trunk")
    head = tf.Variable((1.0 + RANK) * tf.ones([3, 1], inputs.dtype), name="own/head")

    def slopes(data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(data @ trunk) @ head) ** 2)
        return tape.gradient(loss, [trunk, head])

    def step(data: Any) -> None:
        for variable, slope in zip((trunk, head), slopes(data), strict=True):
            variable.assign_sub(0.1 * slope)

    step = tf_libra.optimize(local_variables=["own/*"], **BRIEFLY)(tf.function(step))
    worst = 0.0
    for _ in range(4):
        own = head - 0.1 * slopes(tf.constant(inputs))[1]
        step(tf.constant(inputs))
        worst = max(worst, float(tf.reduce_max(tf.abs(own - head))))
    step.check_variables()
    return {"worst": worst, "bits": bits([trunk]), "head": bits([head])}


@cases
def gradients_accumulated_by_each_rank() -> Any:
    model = hand_written(seed=1)
    sums = [tf.Variable(tf.zeros_like(v), trainable=False, name="sum") for v in model.variables]
    count = tf.Variable(0, trainable=False, name="count")

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.loss(inputs, labels)
        gradients = tape.gradient(loss, model.variables)
        for sum_, variable in zip(sums, model.variables, strict=True):
            sum_.assign_add(tf.reduce_sum(inputs) * tf.ones_like(variable))
        count.assign_add(1)
        model.update(gradients)

    step = tf_libra.optimize(broadcast_variables=False, **BRIEFLY)(tf.function(step))
    train(step)
    step.check_variables()
    return bits(model.variables)


def checked_after(step: Callable[..., Any], *variables: Any) -> Any:
    """Returns which variables differ between the ranks after training, and the error's text."""
    step = tf_libra.optimize(**BRIEFLY)(tf.function(step))
    train(step)
    differ = [len(set(hvd.allgather_object(bit))) > 1 for bit in bits(variables)]
    try:
        step.check_variables()
    except ValueError as error:
        return {"differ": differ, "said": str(error)}
    return {"differ": differ, "said": ""}


@cases
def noise_of_each_rank_after_averaging() -> Any:
    """The slots of the optimizer are made by hand, and trainable by default."""
    model = hand_written(seed=1)
    noise = tf.random.Generator.from_seed(own_seed())

    def step(inputs: Any, labels: Any) -> Any:
        model.step(inputs, labels)
        weight = model.variables[0]
        weight.assign_add(0.01 * noise.normal(weight.shape))

    return checked_after(step, *model.variables)


@cases
def update_under_a_condition_of_each_rank() -> Any:
    """All gradients are averaged in every step, and one rank does not use them."""
    model = models.HandWritten("float32", "sgd", 1)

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.loss(inputs, labels)
        gradients = tape.gradient(loss, model.variables)
        is_used = tf.reduce_sum(inputs) == total
        tf.cond(is_used, lambda: model.update(gradients), lambda: None)

    total = tf.reduce_sum(shard(rank=0)[0])
    return checked_after(step, *model.variables)


@cases
def unequal_starts_with_slots_by_hand_and_a_rate_as_argument() -> Any:
    """The rate is the rank's own for all that the graph tells."""
    model = models.HandWritten("float32", "sgd", own_seed())
    slots = [tf.Variable(tf.zeros_like(variable)) for variable in model.variables]

    def step(rate: Any, inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.loss(inputs, labels)
        gradients = tape.gradient(loss, model.variables)
        for weight, slot, gradient in zip(model.variables, slots, gradients, strict=True):
            slot.assign(0.9 * slot + gradient)
            weight.assign_sub(rate * slot)

    train(tf_libra.optimize(**BRIEFLY)(tf.function(step)), tf.constant(0.1))
    return bits(model.variables)
