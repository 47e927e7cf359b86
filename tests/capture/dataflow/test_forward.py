"""The labelled values that reach each variable, through branches, loops and functions."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.dataflow.forward import LabelFlow, follow_labels, variable_inputs

LABELS = {"Tanh": "tanh", "Sin": "sin"}
A, B = (tf.Variable(1.0, name=name) for name in "ab")


def followed(
    step: Callable[..., Any], *args: Any, **options: Any
) -> tuple[LabelFlow, list[set[str]]]:
    """Returns the flow of Tanh's and Sin's outputs in a traced step; and the labels in A and B."""
    concrete = tf.function(step).get_concrete_function(*(args or (tf.constant(1.0),)))
    graph = concrete.graph
    found = follow_labels(
        traced_graph.read(graph),
        variable_inputs(graph),
        label=lambda node: LABELS.get(node.op),
        results=graph.outputs,
        **options,
    )
    return found, [set(found.written.get(id(value), ())) for value in (A, B)]


def test_written_value_carries_the_labels_of_its_inputs() -> None:
    def step(x: Any) -> Any:
        A.assign_add(2.0 * tf.tanh(x))
        B.assign(x)
        return tf.sin(x) + 1.0

    found, reached = followed(step)
    assert reached == [{"tanh"}, set()]
    assert found.returned == {"sin"}


def test_labels_of_a_variable_reach_its_readers() -> None:
    """Also in the step before, if it is written further down."""

    def step(x: Any) -> None:
        B.assign(A * 2.0)
        A.assign(tf.tanh(x))

    assert followed(step)[1] == [{"tanh"}, {"tanh"}]


def test_a_branch_carries_what_it_was_chosen_by() -> None:
    def step(x: Any) -> Any:
        def changed() -> Any:
            A.assign(x)
            return x

        return tf.cond(tf.tanh(x) > 0, changed, lambda: tf.sin(x))

    found, reached = followed(step)
    assert reached == [{"tanh"}, set()]
    assert found.returned == {"tanh", "sin"}


def test_a_loop_carries_round_what_any_turn_adds() -> None:
    def step(x: Any) -> Any:
        first, second, third = x, x, x
        for _ in tf.range(3):
            third, second, first = second, first, tf.tanh(x)
        A.assign(third)  # three turns later
        return second

    found, reached = followed(step)
    assert reached == [{"tanh"}, set()]
    assert found.returned == {"tanh"}


@pytest.mark.parametrize("operation", [tf.tanh, tf.identity])
def test_functions_are_followed_into_and_out_of(operation: Callable[[Any], Any]) -> None:
    @tf.function
    def inner(x: Any, y: Any) -> Any:
        A.assign(y)
        return operation(x), y

    def step(x: Any) -> Any:
        first, second = inner(x, tf.sin(x))
        B.assign(first)
        return second

    found, reached = followed(step)
    assert reached == [{"sin"}, {"tanh"} if operation is tf.tanh else set()]
    assert found.returned == {"sin"}


def test_functions_of_data_may_do_anything_with_what_they_get() -> None:
    def step(x: Any) -> Any:
        shift = tf.tanh(x)
        dataset = tf.data.Dataset.range(2).map(lambda i: tf.cast(i, tf.float32) + shift)
        total = tf.zeros([])
        for element in dataset:
            total += element
        return total

    assert "tanh" in followed(step)[0].returned


def test_a_label_may_end() -> None:
    def step(x: Any) -> None:
        A.assign(tf.stop_gradient(tf.tanh(x)))
        B.assign(tf.tanh(x))

    _, reached = followed(step, ends_at=lambda node: node.op == "StopGradient")
    assert reached == [set(), {"tanh"}]
