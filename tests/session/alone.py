"""A training step of four layers, of a process that is alone, and plans for it."""

from typing import Any

import tensorflow as tf

from tests.tracing.traces import Traces, chain, loss_of
from tf_libra.backends import backend
from tf_libra.model.plan import Plan, TensorGroup
from tf_libra.tracing.marked_function import marked_function
from tf_libra.tracing.marks import Rules

NAMES = tuple(f"layer{i}" for i in (3, 2, 1, 0))
INPUTS = tf.ones([2, 4])
LANES = backend.resolve("lanes")


def step() -> Any:
    """A marked training step of four layers."""
    layers = chain()

    def train(inputs: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        for layer, gradient in zip(layers, tape.gradient(loss, layers), strict=True):
            layer.assign_sub(0.1 * gradient)
        return loss

    rules = Rules(function="step", place=lambda: (0, 1))
    return marked_function(train, Traces().add, lambda: rules)


def plan(*groups: tuple[int, int, int]) -> Plan:
    return Plan(
        groups=tuple(TensorGroup(*group) for group in groups),
        tensor_names=NAMES,
        num_bytes=(64,) * 4,
        num_workers=1,
        strategy="by hand",
        dtypes=("float32",) * 4,
    )


ONE, TWO = plan((0, 4, 3)), plan((0, 2, 1), (2, 4, 2))
