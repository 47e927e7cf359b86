"""Gradients of one variable in branches that exclude each other."""

from typing import Any

import pytest
import tensorflow as tf

from tests.capture.traces import INPUTS, Traces, all_reduces
from tf_libra.capture import instrumented_function


def gradient_of(weight: tf.Variable, inputs: tf.Tensor, scale: float = 1.0) -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight * inputs) * scale
    return tape.gradient(loss, weight)


def in_two_branches(weight: tf.Variable, inputs: tf.Tensor) -> None:
    chosen = [lambda: gradient_of(weight, inputs), lambda: gradient_of(weight, inputs, 2.0)]
    weight.assign_sub(tf.cond(tf.reduce_sum(inputs) > 0, *chosen))


def in_branches_of_a_branch(weight: tf.Variable, inputs: tf.Tensor) -> None:
    def other() -> tf.Tensor:
        return gradient_of(weight, inputs)

    def another() -> tf.Tensor:
        chosen = [lambda: gradient_of(weight, inputs), lambda: gradient_of(weight, inputs, 2.0)]
        return tf.cond(tf.reduce_sum(inputs) > 0, *chosen)

    branches = [other, another, lambda: tf.zeros([])]
    weight.assign_sub(tf.switch_case(tf.cast(inputs[0, 0], tf.int32), branches))


def in_branches_one_after_the_other(weight: tf.Variable, inputs: tf.Tensor) -> None:
    for _ in range(2):
        in_two_branches(weight, inputs)


def in_a_branch_and_outside(weight: tf.Variable, inputs: tf.Tensor) -> None:
    weight.assign_sub(gradient_of(weight, inputs))
    in_two_branches(weight, inputs)


def twice_in_a_branch(weight: tf.Variable, inputs: tf.Tensor) -> None:
    def both() -> tf.Tensor:
        return gradient_of(weight, inputs) + gradient_of(weight, inputs, 2.0)

    in_one = tf.cond(tf.reduce_sum(inputs) > 0, both, lambda: gradient_of(weight, inputs))
    weight.assign_sub(in_one)


@pytest.mark.parametrize(
    ("step", "names"),
    [
        (in_two_branches, ["weight"]),
        (in_branches_of_a_branch, ["weight"]),
        (in_branches_one_after_the_other, ["weight", "weight#1"]),
        (in_a_branch_and_outside, ["weight", "weight#1"]),
        (twice_in_a_branch, ["weight", "weight#1"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_exclusive_branches_are_one_gradient(step: Any, names: list[str]) -> None:
    weight, traces = tf.Variable(1.0, name="weight"), Traces()
    call = instrumented_function.InstrumentedFunction(lambda x: step(weight, x), traces.add)
    assert set(all_reduces(call.get_concrete_function(INPUTS))) == set(names)
    assert traces.names() == names


def test_branches_of_unequal_shape_are_two_gradients() -> None:
    small, large = tf.Variable(1.0, name="weight"), tf.Variable(tf.ones([2, 4]), name="weight")
    traces = Traces()

    def step(inputs: tf.Tensor) -> Any:
        chosen = [lambda: gradient_of(small, inputs), lambda: gradient_of(large, inputs)[0, 0]]
        return tf.cond(tf.reduce_sum(inputs) > 0, *chosen)

    instrumented_function.InstrumentedFunction(step, traces.add).get_concrete_function(INPUTS)
    assert {gradient.name: gradient.shape for gradient in traces.traces[-1].reduced} == {
        "weight": (),
        "weight#1": (2, 4),
    }
