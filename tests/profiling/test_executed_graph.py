"""Producers of gradients in graphs made by hand and in captured graphs."""

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_libra.profiling.executed_graph import GraphCapture, gradient_sources, placed_all_reduces


def graph(*nodes: tuple[str, str, list[str], dict[str, object]]) -> graph_pb2.GraphDef:
    """Builds a graph of nodes with name, op, inputs and attributes (int or list values)."""
    found = graph_pb2.GraphDef()
    for name, op, inputs, attributes in nodes:
        node = found.node.add(name=name, op=op, input=inputs)
        for key, value in attributes.items():
            if isinstance(value, int):
                node.attr[key].i = value
            elif key == "part_starts":
                node.attr[key].list.i.extend(value)
            else:
                node.attr[key].list.s.extend(entry.encode() for entry in value)
    return found


def test_nodes_feeding_all_reduces_are_producers() -> None:
    """Blocking and asynchronous all-reduces, of this library and of another."""
    of_other = {"_tf_libra_tensor_names": ["c"], "_tf_libra_group": 2, "_tf_libra_num_threads": 4}
    example = graph(
        ("x", "Placeholder", [], {}),
        ("conv", "Conv2DBackpropFilter", ["x", "^before"], {}),
        ("whole", "LibraAllReduce", ["conv:1", "conv", "^x"], {"tensor_names": ["a", "b"]}),
        ("mul", "Mul", ["x", "conv:1"], {}),
        ("other", "HorovodAllreduce", ["mul"], of_other),
    )
    apart = graph(
        ("y", "MatMul", [], {}), ("start", "LibraAllReduceStart", ["y"], {"tensor_names": ["d"]})
    )
    forward = graph(("z", "MatMul", ["w"], {}))
    found = gradient_sources([forward, example, apart])
    assert found.producers == {"a": ("conv",), "b": ("conv",), "c": ("mul",), "d": ("y",)}
    assert found.inputs["conv"] == ("x",) and found.inputs["mul"] == ("x", "conv")
    assert "z" not in found.inputs  # there is no gradient around it
    [placed] = placed_all_reduces([forward, example, apart])
    assert (placed.node, placed.group, placed.num_threads) == ("other", 2, 4)
    assert placed.tensor_names == ("c",)


def test_split_gradient_has_one_producer_and_conditional_one_per_branch() -> None:
    example = graph(
        (
            "first",
            "LibraAllReduce",
            ["a", "b"],
            {"tensor_names": ["a", "b"], "part_starts": [0, 0]},
        ),
        ("second", "LibraAllReduce", ["b_rest"], {"tensor_names": ["b"], "part_starts": [512]}),
        ("then", "LibraAllReduce", ["c_then"], {"tensor_names": ["c"]}),
        ("else", "LibraAllReduce", ["c_else"], {"tensor_names": ["c"]}),
    )
    assert gradient_sources([example]).producers == {
        "a": ("a",), "b": ("b",), "c": ("c_then", "c_else")
    }  # fmt: skip


def test_graphs_without_gradients_are_rejected() -> None:
    with pytest.raises(ValueError, match="graphs must hold an all-reduce"):
        gradient_sources([graph(("z", "MatMul", ["w"], {}))])


def names_of(capture: GraphCapture) -> set[str]:
    return {node.name for graph in capture.graphs for node in graph.node}


def test_function_is_captured_by_its_first_call_only() -> None:
    @tf.function(autograph=False)
    def other(x: tf.Tensor) -> tf.Tensor:
        return tf.sin(x, name="of_the_other")

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(x, name="of_the_step")

    other(tf.ones([2]))
    with GraphCapture() as first:
        step(tf.ones([2]))
    assert any("of_the_step" in name for name in names_of(first))
    assert not any("of_the_other" in name for name in names_of(first))
    with GraphCapture() as again:
        step(tf.ones([2]))
    assert not again.unavailable and not any("of_the_step" in name for name in names_of(again))


def test_user_graph_collection_is_not_disturbed() -> None:
    tf.summary.trace_on(graph=True)
    try:
        with GraphCapture() as capture:
            tf.function(lambda x: x + 1)(tf.ones([2]))
        assert "tf.summary.trace_on" in capture.unavailable and not capture.graphs
    finally:
        tf.summary.trace_off()


def test_graphs_of_a_call_that_fails_are_captured_and_not_taken_for_those_of_the_next() -> None:
    @tf.function
    def fail(values: tf.Tensor) -> tf.Tensor:
        return tf.debugging.check_numerics(tf.math.cosh(values), "not finite")

    @tf.function
    def other(values: tf.Tensor) -> tf.Tensor:
        return tf.math.sinh(values)

    with pytest.raises(tf.errors.InvalidArgumentError), GraphCapture() as failed:
        fail(tf.constant([float("inf")]))
    assert "Cosh" in {node.op for graph in failed.graphs for node in graph.node}
    with pytest.raises(tf.errors.InvalidArgumentError):
        fail(tf.constant([float("inf"), 1.0]))  # another graph
    with GraphCapture() as capture:
        other(tf.constant([1.0]))
    ops = {node.op for graph in capture.graphs for node in graph.node}
    assert "Sinh" in ops and "Cosh" not in ops
