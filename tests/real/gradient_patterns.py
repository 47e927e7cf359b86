"""Scripts that compute or use gradients in a way of their own."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.real.dense_network import CLASSES, FEATURES, Network, cross_entropy, descend, rows
from tests.real.running import By, Scripts, use_float64

SCRIPTS = Scripts()


@SCRIPTS
def gradient_accumulation(by: By) -> Any:
    """Sums over four calls; every fourth applies them."""
    model = Network()
    variables = model.trainable_variables
    sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]
    calls = tf.Variable(0, trainable=False, dtype=tf.int64)
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(variables)

    def apply() -> None:
        optimizer.apply_gradients([(sum_ / 4, v) for sum_, v in zip(sums, variables, strict=True)])
        for sum_ in sums:
            sum_.assign(tf.zeros_like(sum_))

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        for sum_, gradient in zip(sums, tape.gradient(loss, variables), strict=True):
            sum_.assign_add(gradient)
        calls.assign_add(1)
        tf.cond(calls % 4 == 0, apply, lambda: None)
        return loss

    for x, y in by.batches(12, rows):
        train_step(x, y)
    return variables


@SCRIPTS
def accumulation_by_keras(by: By) -> Any:
    """`gradient_accumulation_steps` of Keras' optimizers, by `fit`."""
    use_float64()
    model = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(8, "tanh"), layers.Dense(CLASSES)]
    )
    model.compile(
        keras.optimizers.Adam(0.01, gradient_accumulation_steps=3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    random = np.random.default_rng(1)
    arrays = random.normal(size=(48, FEATURES)), random.integers(0, CLASSES, 48)
    by.fit(model, arrays, batch=4)
    return model.trainable_variables


@SCRIPTS
def average_of_weights(by: By) -> Any:
    """An exponential moving average, by hand and by Keras."""
    model = Network()
    variables = model.trainable_variables
    averages = [tf.Variable(v, trainable=False) for v in variables]
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8)
    optimizer.build(variables)
    shadow = tf.train.ExponentialMovingAverage(0.9)
    shadow.apply(variables)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        for average, variable in zip(averages, variables, strict=True):
            average.assign_sub((average - variable) * 0.1)
        shadow.apply(variables)
        return loss

    for x, y in by.batches(5, rows):
        train_step(x, y)
    return [*variables, *averages, *(shadow.average(v) for v in variables)]


@SCRIPTS
def clipped_by_global_norm(by: By) -> Any:
    """Clips what is averaged, with weight decay by hand and a decaying rate."""
    model = Network()
    variables = model.trainable_variables
    step = tf.Variable(0.0, trainable=False, dtype=tf.float64)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
            loss += 1e-3 * tf.add_n([tf.nn.l2_loss(v) for v in variables])
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, variables), 0.1)
        rate = 0.5 * tf.cos(0.1 * step.assign_add(1.0))
        descend(variables, gradients, rate)
        return loss, norm

    for x, y in by.batches(5, rows):
        train_step(x, y)
    return variables


@SCRIPTS
def unused_head(by: By) -> Any:
    """One head is not used by this loss: its gradient is None, and the script filters it."""
    model = Network()
    spare = tf.Variable(np.ones((FEATURES, 2)), name="spare")
    variables = [*model.trainable_variables, spare]

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        gradients = tape.gradient(loss, variables)
        descend(variables, gradients)
        return loss

    for x, y in by.batches(5, rows):
        train_step(x, y)
    return model.trainable_variables


@SCRIPTS
def unused_head_as_zero(by: By) -> Any:
    """The same, with `gradient` returning zeros, which Keras' optimizer gets."""
    model = Network()
    spare = tf.Variable(np.ones((FEATURES, 2)), name="spare")
    variables = [*model.trainable_variables, spare]
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(variables)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    for x, y in by.batches(5, rows):
        train_step(x, y)
    return model.trainable_variables


@SCRIPTS
def recomputed_blocks(by: By) -> Any:
    """`tf.recompute_grad` around each of two blocks saves memory."""
    model = Network()
    extra = Network(seed=8)
    (w, b), *_ = extra.layers

    @tf.recompute_grad
    def block(x: Any) -> Any:
        return tf.tanh(x @ w + b)

    head = tf.Variable(np.random.default_rng(2).normal(size=(8, FEATURES)) / 3, name="head")

    @tf.recompute_grad
    def tail(x: Any) -> Any:
        return tf.nn.relu(x @ head)

    variables = [w, b, head, *model.trainable_variables]

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(tail(block(x))))
        descend(variables, tape.gradient(loss, variables))
        return loss

    for x, y in by.batches(5, rows):
        train_step(x, y)
    return variables


@SCRIPTS
def recomputed_keras_layers(by: By) -> Any:
    """Keras layers inside of `tf.recompute_grad`."""
    use_float64()
    inner = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(8, "tanh"), layers.Dense(8)])
    outer = keras.Sequential([keras.Input((8,)), layers.Dense(CLASSES)])
    recomputed = tf.recompute_grad(lambda x: inner(x))
    variables = inner.trainable_variables + outer.trainable_variables
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(variables)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, outer(recomputed(x)))
        gradients = tape.gradient(loss, variables)
        # TensorFlow by itself may update a layer of Keras before backward has read it once more.
        with tf.control_dependencies(gradients):
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    for x, y in by.batches(5, rows):
        train_step(x, y)
    return variables


@SCRIPTS
def custom_gradient(by: By) -> Any:
    """`tf.custom_gradient` with a variable inside, whose gradient it computes by itself."""
    model = Network()
    scale = tf.Variable(np.full((FEATURES,), 0.7), name="scale")

    @tf.custom_gradient
    def scaled(x: Any) -> Any:
        def grad(upstream: Any, variables: Any = ()) -> Any:
            return upstream * scale, [tf.reduce_sum(upstream * x, axis=0)]

        return x * scale, grad

    variables = [scale, *model.trainable_variables]

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(scaled(x)))
        descend(variables, tape.gradient(loss, variables))
        return loss

    for x, y in by.batches(5, rows):
        train_step(x, y)
    return variables


@SCRIPTS
def float16_by_hand(by: By) -> Any:
    """Master weights in float32, computation in float16, a constant scale."""
    model = Network(dtype="float32")
    variables = model.trainable_variables

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.cast(x, tf.float16)
            for number, (w, b) in enumerate(model.layers):
                hidden = hidden @ tf.cast(w, tf.float16) + tf.cast(b, tf.float16)
                hidden = tf.tanh(hidden) if number < 2 else hidden
            scaled = cross_entropy(y, tf.cast(hidden, tf.float32)) * 128.0
        descend(variables, [g / 128.0 for g in tape.gradient(scaled, variables)])
        return scaled

    for x, y in by.batches(5, rows):
        train_step(x, y)
    return variables


@SCRIPTS
def multi_task(by: By) -> Any:
    """A persistent tape, a gradient per task, projected where they disagree."""
    model = Network()
    variables = model.trainable_variables

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            out = model(x)
            first, second = cross_entropy(y, out), tf.reduce_mean(out**2)
        ours = tape.gradient(first, variables)
        theirs = tape.gradient(second, variables)
        dot = tf.add_n([tf.reduce_sum(a * b) for a, b in zip(ours, theirs, strict=True)])
        size = tf.add_n([tf.reduce_sum(b * b) for b in theirs])
        part = tf.minimum(dot / size, 0.0)
        descend(variables, [a - part * b + 0.1 * b for a, b in zip(ours, theirs, strict=True)])
        return first

    for x, y in by.batches(5, rows):
        train_step(x, y)
    return variables


@SCRIPTS
def masked_update(by: By) -> Any:
    """A tape that watches only passed variables; gradients are masked, as for pruned weights."""
    model = Network()
    variables = model.trainable_variables
    masks = [np.random.default_rng(i).integers(0, 2, v.shape) for i, v in enumerate(variables)]
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(variables)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = cross_entropy(y, model(x))
        gradients = tape.gradient(loss, variables)
        masked = [g * m for g, m in zip(gradients, masks, strict=True)]
        optimizer.apply(masked, variables)
        return loss

    for x, y in by.batches(5, rows):
        train_step(x, y)
    return variables
