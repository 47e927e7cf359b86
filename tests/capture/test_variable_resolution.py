"""Gradients of what was read of variables are averaged as those of the variables are."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.capture.traces import chain, loss_of, traced

pytestmark = pytest.mark.usefixtures("horovod")
Layers = list[tf.Variable]
EACH = [f"layer{i}" for i in range(4)]


def gradient_of(values: Any, layers: Layers, inputs: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(values)
        loss = loss_of(layers, inputs)
    return tape.gradient(loss, values)


def read(layers: Layers, inputs: Any) -> Any:
    values = [layer.read_value() for layer in layers]
    return gradient_of(values, values, inputs)


def as_tensors(layers: Layers, inputs: Any) -> Any:
    values = [tf.identity(tf.convert_to_tensor(layer)) for layer in layers]
    return gradient_of(values, values, inputs)


def in_half_precision(layers: Layers, inputs: Any) -> Any:
    values = [tf.cast(layer, tf.float16) for layer in layers]
    return gradient_of(values, values, tf.cast(inputs, tf.float16))


def in_a_function(layers: Layers, inputs: Any) -> Any:
    return tf.function(lambda inner: read(layers, inner))(inputs)


def read_outside_of_the_function(layers: Layers, inputs: Any) -> Any:
    values = [layer.read_value() for layer in layers]
    return tf.function(lambda inner: gradient_of(values, values, inner))(inputs)


def moved_by_averages(layers: Layers, inputs: Any, by: Any) -> Any:
    first = gradient_of(layers, layers, inputs)
    size = tf.linalg.global_norm(first)
    near = [layer + by * slope / size for layer, slope in zip(layers, first, strict=True)]
    return gradient_of(near, near, inputs)


@pytest.mark.parametrize(
    "step", [read, as_tensors, in_half_precision, in_a_function, read_outside_of_the_function]
)
def test_gradient_of_a_read_value_is_averaged_under_its_variables_name(
    step: Callable[..., Any],
) -> None:
    layers = chain()
    _, found = traced(lambda inputs: step(layers, inputs))
    assert sorted(found) == EACH


@pytest.mark.parametrize("kind", [float, tf.constant, tf.Variable])
def test_weights_moved_by_averages_are_alike_everywhere(kind: Callable[..., Any]) -> None:
    """However far, as a number, or one made outside of the step, as a learning rate is."""
    layers = chain()
    by = kind(0.1) if kind is not tf.Variable else tf.Variable(0.1, trainable=False)
    _, found = traced(lambda inputs: moved_by_averages(layers, inputs, by))
    assert sorted(found) == sorted([*EACH, *(f"{name}#1" for name in EACH)])


def split(layer: Any) -> Any:
    return tf.split(layer, 2)


def sliced(layer: Any) -> Any:
    return [layer[:1], layer[1:]]


def unstacked_and_reshaped(layer: Any) -> Any:
    return [tf.reshape(column, [2, 2]) for column in tf.unstack(tf.transpose(layer))]


@pytest.mark.parametrize("cut", [split, sliced, unstacked_and_reshaped])
def test_parts_of_a_weight_are_averaged_each(cut: Callable[..., Any]) -> None:
    layer = chain()[0]

    def step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            parts = cut(layer)
            tape.watch(parts)
            loss = tf.add_n([tf.reduce_sum(part) * tf.reduce_sum(inputs) for part in parts])
        return tape.gradient(loss, parts)

    trace, found = traced(step)
    assert len(found) == len(trace.reduced) == len(cut(layer))
    assert {name.partition("#")[0] for name in found} == {"layer0"}


def test_one_vector_of_all_weights_is_one_gradient() -> None:
    layers = chain()

    def step(inputs: Any) -> Any:
        flat = tf.concat([tf.reshape(layer, [-1]) for layer in layers], 0)
        with tf.GradientTape() as tape:
            tape.watch(flat)
            loss = loss_of([tf.reshape(part, [4, 4]) for part in tf.split(flat, 4)], inputs)
        return tape.gradient(loss, flat)

    trace, found = traced(step)
    assert len(found) == 1
    assert trace.reduced[0].shape == (64,)


def activations(layers: Layers, inputs: Any) -> Any:
    return tf.tanh(inputs @ layers[0])


def noise(layers: Layers, inputs: Any) -> Any:
    return layers[0] + tf.random.normal([4, 4])


def rows_for_each_example(layers: Layers, inputs: Any) -> Any:
    return tf.tile(layers[0][None, 0], [2, 1])


def of_a_variable_that_is_not_trained(layers: Layers, inputs: Any) -> Any:
    return layers[0] * BUFFER


def zeros(layers: Layers, inputs: Any) -> Any:
    return tf.zeros([4, 4])


BUFFER = tf.Variable(tf.ones([4, 4]), trainable=False, name="buffer")


@pytest.mark.parametrize(
    "make", [activations, noise, rows_for_each_example, of_a_variable_that_is_not_trained, zeros]
)
def test_values_that_may_be_rank_local_stay_unchanged(make: Callable[..., Any]) -> None:
    layers = chain()

    def step(inputs: Any) -> Any:
        own = make(layers, inputs)
        with tf.GradientTape() as tape:
            tape.watch(own)
            loss = loss_of(layers[1:], own)
        return tape.gradient(loss, [own, *layers[1:]])

    _, found = traced(step)
    assert sorted(found) == EACH[1:]


def test_second_derivative_of_a_read_value_is_rejected_like_that_of_a_variable() -> None:
    layers = chain()

    def step(inputs: Any) -> Any:
        with tf.GradientTape() as outer:
            slopes = read(layers, inputs)
            penalty = tf.add_n([tf.norm(slope) for slope in slopes])
        return outer.gradient(penalty, layers)

    with pytest.raises(ValueError, match=r"step.* 'layer\d' .*inner_gradients="):
        traced(step)


def test_eager_computation_during_tracing_is_no_part_of_the_step() -> None:
    layers = chain()

    def step(inputs: Any) -> Any:
        with tf.init_scope():
            scale = tf.linalg.global_norm(gradient_of(layers, layers, tf.ones([2, 4])))
        return [gradient / scale for gradient in gradient_of(layers, layers, inputs)]

    _, found = traced(step)
    assert sorted(found) == EACH


def test_variables_of_whole_numbers_have_no_gradient_to_average() -> None:
    layers, count = chain(), tf.Variable(1, name="count")

    def step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        return tape.gradient(
            loss, [*layers, count], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )

    _, found = traced(step)
    assert sorted(found) == EACH
