"""Nested functions: traces of the step, and gradients of functions that were traced elsewhere."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.capture.traces import INPUTS, Traces, all_reduces, chain, loss_of, traced
from tf_libra.capture import instrumented_function
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


@pytest.mark.parametrize("function", MADE, ids=lambda function: function.__name__)
@pytest.mark.parametrize("nested", [False, True])
def test_gradients_of_a_nested_function(function: Callable[..., Any], nested: bool) -> None:
    layers = chain()
    inner = tf.function(lambda inputs: function(layers, inputs))
    outer = tf.function(lambda inputs: inner(inputs)) if nested else inner
    concrete = outer.get_concrete_function(INPUTS)
    assert (
        describe_foreign_gradients(concrete, GradientRegistry(ReductionPolicy())) == MADE[function]
    )


@pytest.mark.parametrize("function", MADE, ids=lambda function: function.__name__)
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


def test_gradients_outside_of_functions_are_no_part_of_later_traces() -> None:
    with intercept_gradients("step"):
        pass
    test_a_step_that_calls_one_is_rejected_or_not(updates)


def test_traces_of_one_nested_function_name_their_gradients_alike() -> None:
    """TensorFlow traces what makes variables twice, and again for other shapes."""
    weight = tf.Variable(1.0, name="weight")
    made: list[tf.Variable] = []

    @tf.function
    def nested(inputs: tf.Tensor) -> tf.Tensor:
        if not made:
            made.append(tf.Variable(2.0))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * inputs)
        return tape.gradient(loss, weight)

    @tf.function
    def another(inputs: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = weight * inputs
        return tape.gradient(loss, weight)

    traces = Traces()

    def step(inputs: tf.Tensor) -> tf.Tensor:
        return nested(inputs) + nested(tf.stack([inputs, inputs])) + another(inputs)

    function = instrumented_function.InstrumentedFunction(step, traces.add)
    function.get_concrete_function(tf.constant(1.0))
    assert traces.names() == ["weight", "weight#1"]


def test_function_traced_elsewhere_is_traced_again_and_for_the_step_alone() -> None:
    layers, traces = chain(), Traces()
    traced: list[int] = []

    @tf.function
    def inner(inputs: tf.Tensor) -> Any:
        traced.append(len(traced))
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        return tape.gradient(loss, layers)

    def step(inputs: tf.Tensor) -> Any:
        return inner(inputs)

    before = inner.get_concrete_function(INPUTS)
    for function in ("one", "another"):
        call = instrumented_function.InstrumentedFunction(
            tf.function(step), traces.add, lambda function=function: ReductionPolicy(function)
        )
        call.get_concrete_function(INPUTS)
        assert traces.names() == ["layer3", "layer2", "layer1", "layer0"]
    assert len(traced) == 3
    assert inner.get_concrete_function(INPUTS) is before
    assert all_reduces(before) == []


class Model:
    """A step whose gradients a `tf.function` computes, in the ways in which scripts write that."""

    def __init__(self) -> None:
        self.layers = chain()

    @tf.function
    def method(self, inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(self.layers, inputs)
        return tape.gradient(loss, self.layers)

    @tf.function
    def nested(self, inputs: tf.Tensor) -> Any:
        return self.method(inputs)

    @tf.function
    def in_a_branch(self, inputs: tf.Tensor) -> Any:
        positive = tf.reduce_sum(inputs) > 0
        return tf.cond(positive, lambda: self.method(inputs), lambda: self.method(-inputs))

    @tf.function
    def decorated(self, inputs: tf.Tensor) -> Any:
        return self.method(inputs)


NAMES = ["layer3", "layer2", "layer1", "layer0"]


@pytest.mark.parametrize("kind", ["method", "nested", "in_a_branch", "decorated"])
def test_inner_trace_belongs_to_the_trace_of_the_step_that_has_made_it(kind: str) -> None:
    """A reset of the job makes a registry of the same identity, and so may a second decorator."""
    model, registries = Model(), [Traces(), Traces()]
    inner = getattr(model, kind)
    step = inner if kind == "decorated" else tf.function(lambda inputs: inner(inputs))
    calls = [
        instrumented_function.InstrumentedFunction(
            step, traces.add, lambda: ReductionPolicy("step")
        )
        for traces in registries
    ]
    for inputs in (INPUTS, tf.TensorSpec([3, 4])):
        for call, traces in zip(calls, registries, strict=True):
            assert set(all_reduces(call.get_concrete_function(inputs))) == set(NAMES)
            assert traces.names() == NAMES


def test_concrete_function_of_another_trace_is_rejected() -> None:
    model, traces = Model(), Traces()
    made: list[Any] = []

    def step(inputs: tf.Tensor) -> Any:
        made.append(model.method.get_concrete_function(INPUTS))
        return made[0](inputs[:2])

    call = instrumented_function.InstrumentedFunction(tf.function(step), traces.add)
    call.get_concrete_function(INPUTS)
    assert traces.names() == NAMES
    with pytest.raises(ValueError, match=r"ConcreteFunction.*tf\.function"):
        call.get_concrete_function(tf.TensorSpec([3, 4]))


def test_inner_gradient_that_a_later_trace_differentiates_again_is_rejected() -> None:
    model, traces = Model(), Traces()

    def step(inputs: tf.Tensor, twice: bool) -> Any:
        with tf.GradientTape() as tape:
            squares = sum(tf.reduce_sum(output**2) for output in model.method(inputs))
        return tape.gradient(squares, model.layers) if twice else squares

    call = instrumented_function.InstrumentedFunction(tf.function(step), traces.add)
    call.get_concrete_function(INPUTS, False)
    with pytest.raises(ValueError, match="inner_gradients='average'"):
        call.get_concrete_function(INPUTS, True)
