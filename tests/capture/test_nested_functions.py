"""ConcreteFunctions that were traced elsewhere: which of them bring gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.capture.traces import INPUTS, chain, loss_of, traced
from tf_libra.capture.gradient_interception import intercept_gradients
from tf_libra.capture.gradient_registry import GradientRegistry, ReductionPolicy
from tf_libra.capture.nested_functions import describe_foreign_gradients


def gradients(layers: list[tf.Variable], inputs: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
        loss = loss_of(layers, inputs)
    return tape.gradient(loss, layers)


def updates(layers: list[tf.Variable], inputs: tf.Tensor) -> None:
    for layer, gradient in zip(layers, gradients(layers, inputs), strict=True):
        layer.assign_sub(gradient)


def updates_in_a_loop(layers: list[tf.Variable], inputs: tf.Tensor) -> None:
    for _ in tf.range(3):
        layers[2].assign_sub(gradients(layers, inputs)[2])


def updates_in_a_branch(layers: list[tf.Variable], inputs: tf.Tensor) -> None:
    if tf.reduce_sum(inputs) > 0:
        layers[1].assign_sub(gradients(layers, inputs)[1])


def updates_by_an_op(layers: list[tf.Variable], inputs: tf.Tensor) -> None:
    def apply(*given: tf.Tensor) -> None:
        for layer, gradient in zip(layers, given, strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(var=layer.handle, alpha=0.1, delta=gradient)

    tf.function(apply)(*gradients(layers, inputs))


def returns_one(layers: list[tf.Variable], inputs: tf.Tensor) -> Any:
    return gradients(layers, inputs)[0]


def returns_a_loss(layers: list[tf.Variable], inputs: tf.Tensor) -> Any:
    return loss_of(layers, inputs)


def counts(layers: list[tf.Variable], inputs: tf.Tensor) -> Any:
    layers[0].assign_add(tf.ones([4, 4]))
    return loss_of(layers, inputs)


def returns_forces(layers: list[tf.Variable], inputs: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = loss_of(layers, inputs)
    return tape.gradient(loss, inputs)


MADE = {
    updates: "writes 'layer0:0'",
    updates_in_a_loop: "writes 'layer2:0'",
    updates_in_a_branch: "writes 'layer1:0'",
    updates_by_an_op: "writes 'layer0:0'",
    returns_one: "returns a tensor like 'layer0:0'",
    returns_a_loss: None,
    counts: None,
    returns_forces: None,
}


@pytest.mark.parametrize("function", MADE, ids=lambda one: one.__name__)
@pytest.mark.parametrize("nested", [False, True])
def test_what_a_function_brings(function: Callable[..., Any], nested: bool) -> None:
    layers = chain()
    inner = tf.function(lambda inputs: function(layers, inputs))
    outer = tf.function(lambda inputs: inner(inputs)) if nested else inner
    concrete = outer.get_concrete_function(INPUTS)
    assert (
        describe_foreign_gradients(concrete, GradientRegistry(ReductionPolicy())) == MADE[function]
    )


@pytest.mark.parametrize("function", MADE, ids=lambda one: one.__name__)
def test_a_step_that_calls_one_is_rejected_or_not(function: Callable[..., Any]) -> None:
    layers = chain()
    concrete = tf.function(lambda inputs: function(layers, inputs)).get_concrete_function(INPUTS)

    def step(inputs: tf.Tensor) -> Any:
        concrete(inputs)
        return gradients(layers, inputs)

    if MADE[function] is None:
        assert len(traced(step)[1]) == len(layers)
        return
    with pytest.raises(ValueError, match="step calls ConcreteFunction"):
        traced(step)


def test_a_function_made_in_the_step_brings_nothing_that_is_not_averaged() -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> Any:
        concrete = tf.function(lambda given: gradients(layers, given)).get_concrete_function(INPUTS)
        return concrete(inputs)

    _, found = traced(step, function="step")
    assert len(found) == len(layers)


def test_what_is_marked_outside_of_any_function_is_no_part_of_later_traces() -> None:
    with intercept_gradients("step"):
        pass
    test_a_step_that_calls_one_is_rejected_or_not(updates)
