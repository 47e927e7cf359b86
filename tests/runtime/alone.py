"""A training step of four layers, of a process that is alone, and plans for it."""

from typing import Any

import tensorflow as tf

from tests.capture.traces import Traces, loss_of
from tf_libra.backends import backend
from tf_libra.capture.gradient_registry import ReductionPolicy
from tf_libra.capture.instrumented_function import InstrumentedFunction
from tf_libra.specs.plan import Plan, TensorGroup

NAMES = tuple(f"layer{i}" for i in (3, 2, 1, 0))
# TensorFlow traces no op that it takes for cheap, and these have to be seen.
SIDE = 64
NUM_BYTES = 4 * SIDE**2
INPUTS = tf.ones([SIDE, SIDE])
LANES = backend.resolve("lanes")


def step(*others: str) -> Any:
    """A marked training step of four layers, and of others of these names."""
    names = [*reversed(NAMES), *others]
    layers = [tf.Variable(tf.ones([SIDE, SIDE]) / SIDE, name=name) for name in names]

    def train(inputs: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        for layer, gradient in zip(layers, tape.gradient(loss, layers), strict=True):
            layer.assign_sub(0.1 * gradient)
        return loss

    rules = ReductionPolicy(function="step", rank_and_size=lambda: (0, 1))
    return InstrumentedFunction(train, Traces().add, lambda: rules)


def plan(*groups: tuple[int, int, int]) -> Plan:
    return Plan(
        groups=tuple(TensorGroup(*group) for group in groups),
        tensor_names=NAMES,
        num_bytes=(NUM_BYTES,) * 4,
        num_workers=1,
        strategy="by hand",
        dtypes=("float32",) * 4,
    )


ONE, TWO = plan((0, 4, 3)), plan((0, 2, 1), (2, 4, 2))
