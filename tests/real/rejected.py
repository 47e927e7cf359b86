"""Scripts that cannot be right, or have no plan: each gets an error or a note of one sentence."""

from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tf_libra
import tf_libra.keras
from tests.real.dense_network import FEATURES, Network, cross_entropy, descend, rows
from tests.real.running import By, Scripts

SCRIPTS = Scripts()


def plain_step(model: Network) -> Any:
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        descend(model.trainable_variables, tape.gradient(loss, model.trainable_variables))
        return loss

    return train_step


@SCRIPTS.like("")
def functions_run_eagerly(by: By) -> Any:
    """A switch that was left on while debugging."""
    model = Network()
    train_step = by.optimize()(tf.function(plain_step(model)))
    tf.config.run_functions_eagerly(True)
    try:
        for x, y in by.batches(3, rows):
            train_step(x, y)
    finally:
        tf.config.run_functions_eagerly(False)


@SCRIPTS.like("")
def compiled_by_xla(by: By) -> Any:
    """`jit_compile=True` on the step."""
    train_step = by.optimize()(tf.function(plain_step(Network()), jit_compile=True))
    train_step(*next(by.batches(1, rows)))


@SCRIPTS.like("")
def gradient_compiled_by_xla(by: By) -> Any:
    """`jit_compile=True` on a function that the step calls, which computes the gradients."""
    model = Network()
    inner = tf.function(plain_step(model), jit_compile=True)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        return inner(x, y)

    train_step(*next(by.batches(1, rows)))


@SCRIPTS.like("")
def decorators_in_the_wrong_order(by: By) -> Any:
    """`tf.function` around what is optimized."""
    train_step = tf.function(tf_libra.optimize()(plain_step(Network())))
    train_step(*next(by.batches(1, rows)))


@SCRIPTS.like("")
def decorator_without_parentheses(by: By) -> Any:
    """`@tf_libra.optimize` over the step."""
    tf_libra.optimize(plain_step(Network()))  # type: ignore[arg-type]


@SCRIPTS.like("")
def under_a_strategy(by: By) -> Any:
    """`strategy.scope()` was left in the script."""
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        model = Network()
        train_step = by.optimize()(tf.function(plain_step(model)))
        train_step(*next(by.batches(1, rows)))


@SCRIPTS.like("")
def nothing_is_trained(by: By) -> Any:
    """The evaluation was decorated instead of the training step."""
    model = Network()

    @by.optimize()
    @tf.function
    def test_step(x: Any, y: Any) -> Any:
        return cross_entropy(y, model(x))

    test_step(*next(by.batches(1, rows)))


@SCRIPTS.like("")
def old_gradients(by: By) -> Any:
    """`tf.gradients`, under the name that it was imported by."""
    from tensorflow import gradients

    model = Network()

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        loss = cross_entropy(y, model(x))
        descend(model.trainable_variables, gradients(loss, model.trainable_variables))

    train_step(*next(by.batches(1, rows)))


@SCRIPTS.like("")
def version_1_optimizer(by: By) -> Any:
    """`minimize` of an optimizer of TensorFlow 1, which takes `tf.gradients` by itself."""
    model = Network()
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        loss = cross_entropy(y, model(x))
        optimizer.minimize(loss, var_list=list(model.trainable_variables))

    train_step(*next(by.batches(1, rows)))


@SCRIPTS.like("")
def model_agnostic_meta_learning(by: By) -> Any:
    """The inner gradient is differentiated again, and nothing says what is meant."""
    model = Network()
    variables = model.trainable_variables

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = cross_entropy(y, model(x))
            slopes = inner.gradient(loss, variables)
            loss += tf.add_n([tf.reduce_sum(slope**2) for slope in slopes])
        descend(variables, outer.gradient(loss, variables))

    train_step(*next(by.batches(1, rows)))


@SCRIPTS.like("")
def keras_runs_eagerly(by: By) -> Any:
    """`run_eagerly=True` in `compile`."""
    model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    tf_libra.keras.optimize(model)


@SCRIPTS.like("")
def keras_compiled_by_xla(by: By) -> Any:
    """`jit_compile=True` in `compile`."""
    model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=True)
    tf_libra.keras.optimize(model)


@SCRIPTS.like("")
def one_rank_has_another_model(by: By) -> Any:
    """A width that depends on the rank."""
    units = 8 + by.rank
    w = tf.Variable(np.ones((FEATURES, units)), name="w")
    v = tf.Variable(np.ones((units, 3)), name="v")

    @by.optimize()
    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, tf.tanh(x @ w) @ v)
        descend([w, v], tape.gradient(loss, [w, v]))

    train_step(*next(by.batches(1, rows)))


@SCRIPTS.like("")
def gradients_per_example(by: By) -> Any:
    """`tape.jacobian`, clipped per example as for differential privacy: an error, or right."""

    def trained(share: Any) -> Any:
        w = tf.Variable(np.random.default_rng(1).normal(size=(FEATURES, 3)), name="w")

        def train_step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w)
            each = tape.jacobian(losses, w)
            norms = tf.sqrt(tf.reduce_sum(each**2, axis=[1, 2], keepdims=True))
            w.assign_sub(0.1 * tf.reduce_mean(each / tf.maximum(norms, 0.5), axis=0))

        return w, train_step

    w, train_step = trained(by)
    step = by.optimize()(tf.function(train_step))
    for x, y in by.batches(4, rows):
        step(x, y)
    ours = w.numpy()
    w, train_step = trained(by)
    for number in range(4):
        train_step(*map(tf.constant, rows(np.random.default_rng(100 + number))))
    return float(np.abs(ours - w.numpy()).max())


@SCRIPTS.like("")
def uneven_data_with_join(by: By) -> Any:
    """The last rank has a batch more; the others wait in `hvd.join`."""
    train_step = by.optimize()(tf.function(plain_step(Network())))
    for number, (x, y) in enumerate(by.batches(5, rows)):
        if number == 4 and by.rank != by.size - 1:
            break
        train_step(x, y)
    hvd.join()
