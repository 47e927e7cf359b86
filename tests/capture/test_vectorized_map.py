"""Gradients in the body of `tf.vectorized_map`, of one example each: none is averaged."""

from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from tests.capture.traces import chain, traced
from tf_libra.capture.instrumented_function import marked_function

pytestmark = pytest.mark.usefixtures("horovod")


def clipped(layers: list[tf.Variable], inputs: tf.Tensor, in_a_function: bool = False) -> Any:
    """Each example's loss and gradients, these cut to the same norm; and once more as rows."""

    def of(example: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(tf.tanh(example[None] @ layers[0]) @ layers[1]) ** 2)
        return loss, tf.clip_by_global_norm(tape.gradient(loss, layers[:2]), 0.5)[0]

    return tf.vectorized_map(tf.function(of) if in_a_function else of, inputs)


@pytest.mark.parametrize("in_a_function", [False, True])
def test_nothing_inside_is_averaged(in_a_function: bool) -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> Any:
        return clipped(layers, inputs, in_a_function)[1]

    trace, found = traced(step)
    assert found == []
    assert trace.marked == ()
    # Of what a function has made, it is not known of which.
    assert trace.jacobians == (("layer0",) if in_a_function else ("layer0", "layer1"))


def test_what_has_nothing_to_do_with_gradients_is_no_concern() -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> Any:
        losses, _ = clipped(layers, inputs)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.vectorized_map(lambda one: one[None] @ layers[0], inputs))
        layers[0].assign_sub(tape.gradient(loss, layers[0]))
        return losses

    trace, found = traced(step)
    assert found == ["layer0"]
    assert trace.jacobians == ()


def test_an_update_with_what_is_not_averaged_is_refused() -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> None:
        for layer, rows in zip(layers, clipped(layers, inputs)[1], strict=False):
            layer.assign_sub(tf.reduce_mean(rows, axis=0))

    message = r"step takes the jacobian of 'layer\d', or its gradients in tf\.vectorized_map"
    with pytest.raises(ValueError, match=message):
        traced(step)


@pytest.mark.parametrize("in_a_function", [False, True])
def test_what_the_script_averages_is_all_reduced_once(in_a_function: bool) -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> None:
        rows = clipped(layers, inputs, in_a_function)[1]
        for layer, one in zip(layers, rows, strict=False):
            layer.assign_sub(hvd.allreduce(tf.reduce_mean(one, axis=0)))

    trace, found = traced(step)
    assert len(found) == 2
    assert trace.jacobians == ()
    assert trace.left == {}


def test_tables_and_jacobians_are_gradients_of_an_example_too() -> None:
    layers = chain()

    def of(example: tf.Tensor) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            row = tf.gather(layers[0], [1]) * example
            loss = tf.reduce_sum(row**2)
        return tape.gradient(loss, layers[0]), tape.jacobian(row, layers[0])

    def step(inputs: tf.Tensor) -> Any:
        return tf.vectorized_map(of, inputs)

    trace, found = traced(step)
    assert found == []
    assert trace.jacobians == ("layer0",)


def test_values_are_those_without_us() -> None:
    layers = chain()
    inputs = tf.constant(np.random.default_rng(1).normal(size=[3, 4]), tf.float32)

    def step(inputs: tf.Tensor) -> Any:
        return clipped(layers, inputs)

    ours = tf.nest.flatten(marked_function(step, lambda _: None)(inputs))
    for one, plainly in zip(ours, tf.nest.flatten(tf.function(step)(inputs)), strict=True):
        np.testing.assert_array_equal(one, plainly)
