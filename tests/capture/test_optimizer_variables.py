"""Variables that a Keras optimizer creates in its first step."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.capture.traces import INPUTS, Traces, chain, loss_of
from tf_libra.capture.instrumented_function import InstrumentedFunction


@pytest.mark.parametrize("make", [keras.optimizers.Adam, keras.optimizers.Ftrl])
def test_trace_has_no_conditionals_that_initialize_variables(make: Any) -> None:
    layers, traces, graphs = chain(), Traces(), []
    optimizer, built = make(name="optimizer"), make(name="optimizer")

    def step(inputs: tf.Tensor) -> None:
        graphs.append(tf.compat.v1.get_default_graph())
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        optimizer.apply_gradients(zip(tape.gradient(loss, layers), layers, strict=True))

    call = InstrumentedFunction(tf.function(step), traces.add)
    concrete = call.get_concrete_function(INPUTS)
    assert len(graphs) == 2  # the first trace is that of an optimizer without variables
    assert not [op.type for op in graphs[0].get_operations() if "If" in op.type]
    built.build(layers)
    for found, wanted in zip(optimizer.variables, built.variables, strict=True):
        assert found.path == wanted.path
        np.testing.assert_array_equal(found, wanted)
    captured = {id(variable) for variable in concrete.graph.variables}
    slots = [variable.value for variable in optimizer.variables[2:]]  # not steps and learning rate
    assert slots and captured >= {id(slot) for slot in slots}


def test_step_after_the_trace_uses_the_built_optimizer() -> None:
    """The loss scale is a constant until its variable exists."""
    layers, traces = chain(), Traces()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=8.0)

    def step(inputs: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        optimizer.apply_gradients(zip(tape.gradient(loss, layers), layers, strict=True))
        return optimizer.scale_loss(tf.constant(1.0))

    concrete = InstrumentedFunction(tf.function(step), traces.add).get_concrete_function(INPUTS)
    scale = optimizer.dynamic_scale.value
    assert id(scale) in {id(variable) for variable in concrete.graph.variables}
