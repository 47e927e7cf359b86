"""Gradients that are taken while a tape records: rejected if one differentiates them again."""

from typing import Any

import pytest
import tensorflow as tf

from tests.capture.traces import chain, loss_of, traced

pytestmark = pytest.mark.usefixtures("horovod")
REFUSED = r"(?s)step .*'layer\d'.*inner_gradients='average'.*inner_gradients='local'"
EACH = [f"layer{i}" for i in range(4)]


def test_a_persistent_tape_may_compute_gradients_in_its_own_context() -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            loss = loss_of(layers, inputs)
            return tape.gradient(loss, layers)

    _, found = traced(step)
    assert sorted(found) == EACH


def test_variables_may_be_updated_inside_of_another_tape() -> None:
    """As where a generator is updated within the context of the discriminator's tape."""
    layers = chain()

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                loss = loss_of(layers[:2], inputs)
            for layer, gradient in zip(layers[:2], tape.gradient(loss, layers[:2]), strict=True):
                layer.assign_sub(gradient)
            other = loss_of(layers, inputs)
        return outer.gradient(other, layers[2:])

    _, found = traced(step)
    assert sorted(found) == EACH


def test_a_persistent_tape_that_differentiates_its_own_gradient_is_rejected() -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            loss = loss_of(layers, inputs)
            penalty = tf.add_n([tf.norm(gradient) for gradient in tape.gradient(loss, layers)])
        return tape.gradient(loss + penalty, layers)

    with pytest.raises(ValueError, match=REFUSED):
        traced(step)


@pytest.mark.parametrize("differentiate", ["gradient", "jacobian", "function"])
def test_higher_order_gradients_are_found_in_functions_and_loops(differentiate: str) -> None:
    layers = chain()

    @tf.function
    def slopes(inputs: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as inner:
            loss = loss_of(layers, inputs)
        return inner.gradient(loss, layers)

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as outer:
            total = tf.constant(0.0)
            for _ in tf.range(2):
                total += tf.add_n([tf.reduce_sum(slope**2) for slope in slopes(inputs)])
        if differentiate == "function":
            return tf.gradients(total, inputs)
        return getattr(outer, differentiate)(total, layers[0])

    with pytest.raises(ValueError, match=REFUSED):
        traced(tf.function(step))


def test_forward_over_backward_is_rejected_and_backward_next_to_forward_is_not() -> None:
    layers = chain()
    ones = [tf.ones_like(layer) for layer in layers]

    def hessian_times_vector(inputs: tf.Tensor) -> Any:
        with tf.autodiff.ForwardAccumulator(layers, ones) as accumulator:
            with tf.GradientTape() as tape:
                loss = loss_of(layers, inputs)
            gradients = tape.gradient(loss, layers)
        return accumulator.jvp(gradients)

    def slope(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        gradients = tape.gradient(loss, layers)
        with tf.autodiff.ForwardAccumulator(layers, gradients) as accumulator:
            again = loss_of(layers, inputs)
        return accumulator.jvp(again)

    with pytest.raises(ValueError, match=r"hessian_times_vector .*'layer\d'.*inner_gradients="):
        traced(hessian_times_vector)
    _, found = traced(slope)
    assert sorted(found) == EACH
