"""Writes of a step that may come before the gradients of other ranks."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.capture.test_elementwise_updates import all_reduced
from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.early_writes import find_early_writes


@tf.function
def halve(slot: tf.Variable) -> None:
    slot.assign(0.5 * slot)


@tf.function
def add(slot: tf.Variable, gradient: tf.Tensor) -> None:
    slot.assign_add(gradient)


def decay_and_add(slot: tf.Variable, gradient: tf.Tensor) -> None:
    slot.assign(0.5 * slot)
    slot.assign_add(gradient)


def add_if_it_is_large(slot: tf.Variable, gradient: tf.Tensor) -> None:
    large = tf.reduce_sum(gradient) > 1.0
    tf.cond(large, lambda: slot.assign_add([1.0, 1.0]), lambda: slot.assign([0.0, 0.0]))


def add_in_some_steps(slot: tf.Variable, gradient: tf.Tensor) -> None:
    slot.assign_add(tf.cond(slot[0] > 1.0, lambda: gradient, lambda: tf.zeros([2])))


def reset_in_some_steps(slot: tf.Variable, gradient: tf.Tensor) -> None:
    tf.cond(slot[0] > 1.0, lambda: slot.assign([0.0, 0.0]), lambda: slot.assign_add(gradient))


def add_twice(slot: tf.Variable, gradient: tf.Tensor) -> None:
    for _ in tf.range(2):
        slot.assign_add(gradient)


@pytest.mark.parametrize(
    ("update", "is_early"),
    [
        (lambda slot, gradient: slot.assign_add(gradient), False),
        (lambda slot, gradient: slot.assign(0.5 * slot + gradient), False),
        (lambda slot, gradient: slot.assign(tf.ones([2])), True),
        (lambda slot, gradient: halve(slot), True),
        (add, False),
        (decay_and_add, True),
        (add_if_it_is_large, False),
        (add_in_some_steps, True),
        (reset_in_some_steps, True),
        (add_twice, True),  # a loop counts as if it replaced what it is given
    ],
)
def test_write_is_early_unless_it_needs_a_gradient(
    update: Callable[[tf.Variable, tf.Tensor], Any], is_early: bool
) -> None:
    weight, slot = tf.Variable([1.0, 2.0]), tf.Variable([0.0, 0.0])

    def step(gradient: tf.Tensor) -> None:
        averaged = all_reduced("weight", gradient * weight)
        update(slot, averaged)
        weight.assign_sub(averaged)

    graph = tf.function(step).get_concrete_function(tf.TensorSpec([2])).graph
    names = [tensor.op.name for tensor in graph.inputs]
    outer = {inner.op.name: tensor for tensor, inner in graph.captures}
    early = [outer[names[i]] for i in find_early_writes(traced_graph.read(graph))]
    assert [handle is slot.handle for handle in early] == [True] * is_early
