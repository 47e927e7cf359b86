"""A trace read as values: nodes, what they call, and what is a handle."""

from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.dataflow.traced_graph import LOOPS, WRITES
from tf_libra.internal import native


def reduced(name: str, tensor: Any) -> Any:
    (result,) = native.load().ops.libra_all_reduce(
        tensors=[tensor], ends=[], tensor_names=[name], function="f"
    )
    return result


def test_everything_that_a_step_calls_is_there() -> None:
    variable = tf.Variable(1.0)

    @tf.function
    def inner(x: Any) -> Any:
        return reduced("w", x)

    @tf.function
    def step(x: Any, *, count: Any) -> Any:
        for _ in tf.range(count):
            x = tf.tanh(x)
        variable.assign_sub(inner(x))
        return x

    graph = step.get_concrete_function(tf.constant(1.0), count=tf.constant(2)).graph
    found = traced_graph.read(graph)
    body = found.body
    assert len(body.arguments) == len(body.resources) == 3
    assert body.resources.count(True) == 1  # the variable that it has captured
    by_name = {node.name: node for node in body.nodes}
    assert set(body.arguments) <= set(by_name)
    for node in body.nodes:
        assert all(source in by_name for source, _ in node.inputs)
    [loop] = [node for node in body.nodes if node.op in LOOPS]
    assert len(loop.functions) == 2
    called = [name for node in body.nodes for name in node.functions]
    assert set(called) <= set(found.functions)
    nodes = [
        *body.nodes,
        *(node for called_function in found.functions.values() for node in called_function.nodes),
    ]
    assert [node.tensor_names for node in nodes if node.op == "LibraAllReduce"] == [("w",)]
    [write] = [node for node in nodes if WRITES.match(node.op)]
    assert by_name[write.inputs[0][0]].name in body.arguments
    for function in found.functions.values():
        inside = {*function.arguments, *(node.name for node in function.nodes)}
        assert all(source in inside for source, _ in function.results)
        assert len(function.results) == len(function.result_resources)


def test_small_constants_are_distinguished_and_large_ones_are_not() -> None:
    @tf.function
    def step() -> Any:
        small = [tf.constant([1, 2], name="a"), tf.constant([1, 2], name="b")]
        other, large = tf.constant([1, 3], name="c"), tf.constant([7] * 9, name="d")
        return [*small, other, large]

    body = traced_graph.read(step.get_concrete_function().graph).body
    constants = {node.name: node.constant for node in body.nodes if node.op == "Const"}
    assert constants["a"] == constants["b"] != b""
    assert constants["c"] not in (b"", constants["a"])
    assert constants["d"] == b""
