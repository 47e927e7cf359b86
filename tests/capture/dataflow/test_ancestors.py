"""Backward walks over tensors, into and out of branches."""

from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow import ancestors as walks


def test_ancestors_are_nearest_first_and_pass_through_captures() -> None:
    found: list[list[str]] = []

    @tf.function
    def step(x: Any) -> Any:
        tanh = tf.tanh(x, name="tanh")

        def branch() -> Any:
            result = tf.sin(tanh, name="sin")
            found.append([ancestor.op.type for ancestor in walks.ancestors(result)])
            return result

        return tf.cond(x > 0, branch, lambda: x)

    step.get_concrete_function(tf.TensorSpec([]))
    # The branch's placeholder stands for the outer tensor.
    assert found[0] == ["Sin", "Placeholder", "Tanh", "Placeholder"]


def test_ancestors_end_where_the_caller_says() -> None:
    with tf.Graph().as_default():
        first = tf.tanh(tf.constant(1.0))
        last = tf.sin(first)
        found = walks.ancestors(last, lambda tensor: tensor is first)
    assert found == [last, first]


def test_eager_values_have_no_ancestors() -> None:
    assert walks.ancestors(tf.constant(1.0)) == []


def test_captures_are_found_from_both_sides() -> None:
    outer = tf.Variable(1.0).handle

    @tf.function
    def step() -> None:
        graph = tf.compat.v1.get_default_graph()
        inner = graph.capture(outer)
        assert walks.find_inner(graph, outer) is inner
        assert walks.find_outer(graph, inner) is outer
        assert walks.find_inner(graph, inner) is None

    step.get_concrete_function()


def test_enclosing_graphs_are_innermost_first() -> None:
    graphs: list[Any] = []

    @tf.function
    def inner() -> None:
        graphs.extend(walks.enclosing_graphs(tf.compat.v1.get_default_graph()))

    @tf.function
    def outer() -> None:
        inner()
        assert graphs[1] is tf.compat.v1.get_default_graph()

    outer.get_concrete_function()
    assert len(graphs) >= 2


def test_tensors_of_a_structure_are_flat() -> None:
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]))
    assert len(walks.tensors_of({"a": slices, "b": [tf.ones([]), 3]})) == 3
