"""The calls of `gradient` that are the step's own, by its graph."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import gradients_impl

from tests.capture.traces import chain, loss_of, traced

FOUR = [f"layer{i}" for i in range(4)]


def two(layers: list[tf.Variable]) -> Callable[[Any], Any]:
    return lambda inputs: tf.tanh(tf.tanh(inputs @ layers[0]) @ layers[1])


def recomputed(layers: list[tf.Variable]) -> Callable[[Any], Any]:
    return tf.recompute_grad(two(layers))


def recomputed_function(layers: list[tf.Variable]) -> Callable[[Any], Any]:
    return tf.recompute_grad(tf.function(two(layers)))


def function_recomputed(layers: list[tf.Variable]) -> Callable[[Any], Any]:
    return tf.function(tf.recompute_grad(two(layers)))


def recomputed_twice(layers: list[tf.Variable]) -> Callable[[Any], Any]:
    inner = tf.recompute_grad(lambda inputs: tf.tanh(inputs @ layers[1]))
    return tf.recompute_grad(lambda inputs: inner(tf.tanh(inputs @ layers[0])))


def tape_in_the_gradient(layers: list[tf.Variable]) -> Callable[[Any], Any]:
    @tf.custom_gradient
    def block(inputs: Any) -> Any:
        def gradient(upstream: Any, variables: Any = None) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                again = two(layers)(inputs)
            chosen = [inputs, *variables]
            found = tape.gradient(again, chosen, output_gradients=upstream)
            return found[0], found[1:]

        return two(layers)(inputs), gradient

    return block


def tape_before_the_gradient(layers: list[tf.Variable]) -> Callable[[Any], Any]:
    @tf.custom_gradient
    def block(inputs: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(inputs)
            result = two(layers)(inputs)

        rows = tape.gradient(result, [inputs, *layers[:2]])

        def gradient(upstream: Any, variables: Any = None) -> Any:
            by_name = {id(v): row for v, row in zip(layers[:2], rows[1:], strict=True)}
            scale = tf.reduce_mean(upstream)
            return rows[0] * scale, [by_name[id(v)] * scale for v in variables]

        return result, gradient

    return block


@pytest.mark.parametrize(
    "block",
    [
        recomputed,
        recomputed_function,
        function_recomputed,
        recomputed_twice,
        tape_in_the_gradient,
        tape_before_the_gradient,
    ],
)
@pytest.mark.parametrize("in_function", [False, True])
def test_gradients_inside_of_another_are_a_part_of_it(
    block: Callable[[Any], Any], in_function: bool
) -> None:
    layers = chain()
    custom = block(layers)

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(layers[2:], custom(inputs))
        return tape.gradient(loss, layers)

    trace, found = traced(tf.function(tf.function(step)) if in_function else step)
    assert sorted(found) == FOUR
    assert sorted(gradient.name for gradient in trace.reduced) == FOUR


def test_gradients_of_a_ranks_own_variables_stay_its_own() -> None:
    layers = chain()

    def step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        return tape.gradient(loss, layers)

    _, found = traced(step, is_rank_local=lambda variable: variable is layers[2])
    assert sorted(found) == [FOUR[0], FOUR[1], FOUR[3]]


def test_a_function_used_inside_of_a_gradient_and_outside_is_marked_outside() -> None:
    """TensorFlow would take the first trace again, in which nothing is averaged."""
    layers = chain()

    @tf.function
    def gradients_of(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        return tape.gradient(loss, layers)

    @tf.custom_gradient
    def scaled(inputs: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return upstream * tf.add_n(
                [tf.reduce_sum(gradient) for gradient in gradients_of(inputs)]
            )

        return tf.identity(inputs), gradient

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(scaled(inputs))
        return tape.gradient(loss, inputs), gradients_of(inputs)

    _, found = traced(step)
    assert sorted(found) == FOUR


@pytest.mark.skipif(not hasattr(keras, "RematScope"), reason="Keras 3.9 has it")
@pytest.mark.parametrize(
    "scope", [{"mode": "activations"}, {"mode": "list_of_layers", "layer_names": ["inner"]}]
)
def test_keras_recomputes_layers(scope: dict[str, Any]) -> None:
    with keras.RematScope(**scope):
        inner = keras.layers.Dense(4, activation="tanh", name="inner")
        model = keras.Sequential([keras.Input((4,)), inner, keras.layers.Dense(2, name="outer")])

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(inputs) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    _, found = traced(step)
    assert sorted(found) == sorted(
        trainable_variable.path for trainable_variable in model.trainable_variables
    )


def test_recomputing_computes_what_it_did() -> None:
    layers = chain()
    block = tf.recompute_grad(two(layers))

    def gradients(custom: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(layers[2:], custom(tf.ones([2, 4])))
        return tape.gradient(loss, layers)

    for ours, plainly in zip(gradients(block), gradients(two(layers)), strict=True):
        np.testing.assert_allclose(ours, plainly, rtol=1e-6)


# Gradients that are None.


@pytest.mark.parametrize("place", [0, 4])
def test_a_gradient_that_is_none_is_passed_through(place: int) -> None:
    layers, unused = chain(), tf.Variable(1.0, name="unused")
    seen: list[Any] = []

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        chosen = [*layers[:place], unused, *layers[place:]]
        seen[:] = tape.gradient(loss, chosen)
        return [gradient for gradient in seen if gradient is not None]

    trace, found = traced(step)
    assert [index for index, gradient in enumerate(seen) if gradient is None] == [place]
    assert found == FOUR[::-1]
    assert trace.missing == ("unused",)


def test_zero_may_stand_for_none() -> None:
    layers, unused = chain(), tf.Variable(tf.ones([3]), name="unused")

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        return tape.gradient(loss, [*layers, unused], unconnected_gradients="zero")

    trace, found = traced(step)
    assert sorted(found) == [*FOUR, "unused"]
    assert trace.missing == ()


def test_one_that_is_none_inside_of_another_tape() -> None:
    layers, unused = chain(), tf.Variable(1.0, name="unused")

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = loss_of(layers, inputs)
            first = inner.gradient(loss, [*layers, unused])
            penalty = tf.add_n(
                [tf.reduce_sum(gradient**2) for gradient in first if gradient is not None]
            )
        return [
            gradient
            for gradient in outer.gradient(penalty, [*layers, unused])
            if gradient is not None
        ]

    for rule, times in (("local", 1), ("average", 3)):
        trace, found = traced(step, inner_gradients=rule)
        assert len(found) == times * len(layers)
        assert trace.missing == ("unused",)


# tf.gradients, by any name.


def by_optimizer(loss: Any, xs: Any) -> Any:
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    return [gradient for gradient, _ in optimizer.compute_gradients(loss, var_list=xs)]


def minimized(loss: Any, xs: Any) -> Any:
    return tf.compat.v1.train.AdamOptimizer(0.1).minimize(loss, var_list=xs)


@pytest.mark.parametrize(
    "gradients",
    [
        tf.gradients,
        tf.compat.v1.gradients,
        gradients_impl.gradients,
        gradients_impl.gradients_v2,
        tf.hessians,
        by_optimizer,
        minimized,
    ],
)
def test_gradients_that_no_tape_computes_are_rejected(gradients: Callable[..., Any]) -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> Any:
        return gradients(loss_of(layers, inputs), layers)

    with pytest.raises(ValueError, match=r"step .*'layer0' with tf\.gradients"):
        traced(step)


def test_a_handle_that_is_differentiated_by_is_named() -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> Any:
        return tf.gradients(loss_of(layers, inputs), [layers[1].handle])

    with pytest.raises(ValueError, match="'layer1'"):
        traced(step)


def test_tf_gradients_of_inputs_is_allowed() -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> Any:
        (slope,) = tf.gradients(loss_of(layers, inputs), [inputs])
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs + slope)
        return tape.gradient(loss, layers)

    _, found = traced(step)
    assert found == FOUR[::-1]


def test_an_optimizer_of_version_one_may_use_a_tape() -> None:
    layers = chain()
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)

    def step(inputs: tf.Tensor) -> None:
        optimizer.minimize(functools.partial(loss_of, layers, inputs), var_list=layers)

    _, found = traced(step)
    assert found == FOUR[::-1]
