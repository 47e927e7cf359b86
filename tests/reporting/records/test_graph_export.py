"""Exported graph: the trace with the plan's all-reduces."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tf_libra.internal import native
from tf_libra.reporting.records.graph_export import GroupNode, step_graph

NAMES = tuple(f"layer_{i}/kernel" for i in range(4))
GROUPS = (
    GroupNode("tf_libra/plan/group_0", 0, 2, 0, NAMES[:1]),
    GroupNode("tf_libra/plan/group_1", 1, 4, 0, NAMES[1:]),
)


def reduced(name: str, value: tf.Tensor) -> tf.Tensor:
    return native.load().ops.libra_all_reduce(
        tensors=[value], ends=[], tensor_names=[name], name="LibraAllReduce"
    )[0]


def all_reduces(x: tf.Tensor) -> list[tf.Tensor]:
    """Builds a graph with an all-reduce of each tensor, last first, in different shapes."""
    found = {
        name: reduced(name, x * tf.ones(1 + i)) for i, name in reversed(list(enumerate(NAMES)))
    }
    return [found[name] + 1.0 for name in NAMES]


def plain(x: tf.Tensor) -> list[tf.Tensor]:
    return all_reduces(x)


def within_a_function(x: tf.Tensor) -> list[tf.Tensor]:
    return tf.function(all_reduces, autograph=False)(x)


def definition(function: Callable[..., Any]) -> Any:
    trace = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([]))
    return trace.graph.as_graph_def()


def bodies(graph: Any) -> list[Any]:
    return [graph.node, *(function.node_def for function in graph.library.function)]


def nodes_of(graph: Any, op: str) -> list[Any]:
    return [node for body in bodies(graph) for node in body if node.op == op]


@pytest.mark.parametrize("function", [plain, within_a_function])
def test_all_reduces_are_merged_as_planned(function: Callable[..., Any]) -> None:
    graph = step_graph(definition(function), GROUPS)
    found = nodes_of(graph, "LibraAllReduce")
    assert sorted(node.name for node in found) == [group.name for group in GROUPS]
    for node, group in zip(sorted(found, key=lambda node: node.name), GROUPS, strict=True):
        names = tuple(name.decode() for name in node.attr["tensor_names"].list.s)
        assert names == group.tensor_names
        assert (node.attr["group"].i, node.attr["num_threads"].i) == (
            group.group,
            group.num_threads,
        )
    # TensorFlow takes it for a graph: all that is read is there, of a shape that fits.
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph, name="")
    assert len(imported.get_operations()) == len(graph.node)


def test_outputs_follow_their_tensors() -> None:
    graph = step_graph(definition(plain), GROUPS)
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph, name="")
        adds = [
            get_operation
            for get_operation in imported.get_operations()
            if get_operation.type == "AddV2"
        ]
        shapes = sorted(node.inputs[0].shape.as_list() for node in adds)
    assert shapes == [[1], [2], [3], [4]]
    for add in adds:
        source = add.inputs[0]
        names = [name.decode() for name in source.op.get_attr("tensor_names")]
        assert source.shape == [1 + NAMES.index(names[source.value_index])]


def test_split_tensor_is_not_merged() -> None:
    cut = [GroupNode("tf_libra/plan/group_0", 0, 1, 0, NAMES[:2])]
    cut.append(GroupNode("tf_libra/plan/group_1", 1, 1, 0, NAMES[1:]))
    graph = step_graph(definition(plain), cut)
    reduced_by = {
        name.decode(): node.name
        for node in nodes_of(graph, "LibraAllReduce")
        for name in node.attr["tensor_names"].list.s
    }
    assert reduced_by[NAMES[0]] == "tf_libra/plan/group_0"
    assert reduced_by[NAMES[1]].startswith("LibraAllReduce")
    assert reduced_by[NAMES[2]] == reduced_by[NAMES[3]] == "tf_libra/plan/group_1"


def test_op_type_of_another_engine_is_shown() -> None:
    graph = step_graph(definition(plain), GROUPS, "HorovodGroupedAllreduce")
    assert nodes_of(graph, "LibraAllReduce") == []
    assert len(nodes_of(graph, "HorovodGroupedAllreduce")) == len(GROUPS)


def test_large_constants_are_written_without_values() -> None:
    large = tf.random.stateless_uniform((100, 100), (1, 2)).numpy()
    graph = step_graph(definition(lambda x: [x + large, x + 2.0]), ())
    sizes = {
        math.prod(dimension.size for dimension in node.attr["value"].tensor.tensor_shape.dim): node
        for node in nodes_of(graph, "Const")
    }
    assert sizes[10_000].ByteSize() < 200
    assert tf.make_ndarray(sizes[1].attr["value"].tensor) == 2.0
