"""Conditions of an update, as selections that every stage makes for its own variables.

A condition that updates variables of several stages is one op, which no stage could run by itself.
Both branches are computed instead, and a variable keeps what the branch has made of it only where
that branch is taken: then each stage updates its own, and only the predicate is of all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.internal import tf_internal


@dataclass(frozen=True)
class _Branch:
    """The results and effects of a branch.

    Attributes:
        returned: what it returns.
        written: variables that it writes.
        takes: tensors that it takes from outside.
        is_plain: whether it has no effect but on these variables, whose shapes are known.
    """

    returned: Any
    written: tuple[Any, ...]
    takes: tuple[Any, ...]
    is_plain: bool


def selected(
    predicate: Any, branches: Sequence[Callable[[], Any]], is_sample: Callable[[Any], bool]
) -> tuple[Any] | None:
    """Computes both branches of a condition in the current graph and selects the results.

    Args:
        predicate: a tensor.
        branches: called if the predicate is true and if it is false, in this order.
        is_sample: of a tensor of this graph, whether it belongs to a microbatch.

    Returns:
        The result of the condition. None if the condition writes no variable, has other effects,
        returns results that cannot be selected, or depends on samples: then nothing has been added
        to the graph.
    """
    tried = [_tried(one, predicate) for one in branches]
    takes = [predicate, *(tensor for one in tried for tensor in one.takes)]
    if (
        not any(one.written for one in tried)
        or not all(one.is_plain for one in tried)
        or not _are_alike(*(one.returned for one in tried))
        or any(is_sample(one) for one in takes)
    ):
        return None
    predicate = tf.reshape(predicate, [])
    results = []
    for call, branch, is_taken in zip(
        branches, tried, (predicate, tf.logical_not(predicate)), strict=True
    ):
        before = [one.read_value() for one in branch.written]
        results.append(call())
        for variable, value in zip(branch.written, before, strict=True):
            variable.assign(tf.where(is_taken, variable.read_value(), value))
    return (tf.nest.map_structure(lambda *both: _either(predicate, *both), *results),)


def _tried(call: Callable[[], Any], predicate: Any) -> _Branch:
    """A branch in a graph that is thrown away."""
    # An op that a branch returns stands for the predicate, as in `tf.cond`.
    graph = tf_internal.func_graph_from_py_func("tried", call, (), {}, op_return_value=predicate)
    outside = {id(inner): outer for outer, inner in graph.captures}
    written = {
        id(outside[id(handle)])
        for op in graph.get_operations()
        for handle in tf_internal.get_read_write_resource_inputs(op)[1]
        if id(handle) in outside
    }
    by_handle = {id(one.handle): one for one in graph.variables}
    # In the order of the program: that of `graph.variables` is another one on every rank.
    variables = tuple(
        by_handle[id(outer)]
        for outer, _ in graph.captures
        if id(outer) in written and id(outer) in by_handle
    )
    nodes = graph.as_graph_def()
    every = [*nodes.node, *(one for f in nodes.library.function for one in f.node_def)]
    return _Branch(
        graph.structured_outputs,
        variables,
        tuple(outside.values()),
        len(variables) == len(written)
        and all(one.shape.is_fully_defined() for one in variables)
        and all(map(is_plain, every)),
    )


def is_plain(node: Any) -> bool:
    """Returns whether an op has no effect except on variables that it takes as inputs."""
    op = tf_internal.find_op_definition(node.op)
    return (
        op is None  # a function, whose ops are looked at
        or not op.is_stateful
        or any(one.type == tf.resource.as_datatype_enum for one in op.input_arg)
        or any(value.HasField("func") or value.list.func for value in node.attr.values())
    )


def _are_alike(one: Any, other: Any) -> bool:
    """Returns whether two results have the same structure, so that either can be selected."""
    try:
        tf.nest.assert_same_structure(one, other, expand_composites=True)
    except (TypeError, ValueError):
        return False
    pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
    return all(_is_alike(*pair) for pair in pairs)


def _is_alike(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return (
        isinstance(one, tf.Tensor)
        and isinstance(other, tf.Tensor)
        and one.dtype == other.dtype
        and one.dtype not in (tf.resource, tf.variant)
        and one.shape.is_fully_defined()
        and one.shape == other.shape
    )


def _either(predicate: Any, one: Any, other: Any) -> Any:
    if one is None:
        return None
    return predicate if isinstance(one, tf.Operation) else tf.where(predicate, one, other)


def graph_inputs(tensor: Any, until: Callable[[Any], bool]) -> list[Any]:
    """The placeholders of its graph from which a tensor is computed.

    Args:
        tensor: of a graph.
        until: of an op, whether what it takes does not count.
    """
    found, waiting, seen = [], [tensor.op], {tensor.op.name}
    while waiting:
        op = waiting.pop()
        if op.type == "Placeholder":
            found.append(op.outputs[0])
        elif not until(op):
            for one in op.inputs:
                if one.op.name not in seen:
                    seen.add(one.op.name)
                    waiting.append(one.op)
    return found
