"""Conditions of the update, rewritten as selections that each stage makes for its own variables.

A condition that updates variables of several stages is one op, which no stage can run by itself.
So both branches are computed, and a selection discards the writes of the branch that is not taken.
Then each stage updates its own variables, and stages share only the predicate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.internal import tf_internal


@dataclass(frozen=True)
class _Branch:
    """Results and effects of a branch.

    Attributes:
        results: structure that the branch returns.
        written: variables that it writes.
        captures: tensors that it takes from the outer graph.
        writes_only_variables: whether it has no other effect, and `written` have known shapes.
    """

    results: Any
    written: tuple[Any, ...]
    captures: tuple[Any, ...]
    writes_only_variables: bool


def select_branches(
    predicate: Any, branches: Sequence[Callable[[], Any]], is_per_example: Callable[[Any], bool]
) -> tuple[Any] | None:
    """Computes both branches of a condition in the current graph and selects the results.

    Args:
        predicate: a boolean tensor.
        branches: called if the predicate is true and if it is false, in this order.
        is_per_example: returns whether a tensor of this graph depends on examples.

    Returns:
        The result of the condition in a tuple. None, with an unchanged graph, if the condition
        writes no variable, has other effects, depends on examples, or has results that cannot be
        selected.
    """
    traced = [_trace_branch(call, predicate) for call in branches]
    inputs = [predicate, *(tensor for branch in traced for tensor in branch.captures)]
    if (
        not any(branch.written for branch in traced)
        or not all(branch.writes_only_variables for branch in traced)
        or not _are_selectable(*(branch.results for branch in traced))
        or any(is_per_example(tensor) for tensor in inputs)
    ):
        return None
    predicate = tf.reshape(predicate, [])
    results = []
    for call, branch, is_taken in zip(
        branches, traced, (predicate, tf.logical_not(predicate)), strict=True
    ):
        old_values = [variable.read_value() for variable in branch.written]
        results.append(call())
        for variable, old_value in zip(branch.written, old_values, strict=True):
            variable.assign(tf.where(is_taken, variable.read_value(), old_value))
    return (tf.nest.map_structure(lambda *pair: _select(predicate, *pair), *results),)


def _trace_branch(call: Callable[[], Any], predicate: Any) -> _Branch:
    """Analyzes a branch in a temporary graph."""
    # As in `tf.cond`, the predicate replaces an op that the branch returns.
    graph = tf_internal.func_graph_from_py_func("branch", call, (), {}, op_return_value=predicate)
    outer_of = {id(inner): outer for outer, inner in graph.captures}
    written = {
        id(outer_of[id(handle)])
        for op in graph.get_operations()
        for handle in tf_internal.get_read_write_resource_inputs(op)[1]
        if id(handle) in outer_of
    }
    by_handle = {id(variable.handle): variable for variable in graph.variables}
    # `graph.variables` has another order on every rank; captures follow the program.
    variables = tuple(
        by_handle[id(outer)]
        for outer, _ in graph.captures
        if id(outer) in written and id(outer) in by_handle
    )
    graph_def = graph.as_graph_def()
    nodes = [
        *graph_def.node,
        *(node for function in graph_def.library.function for node in function.node_def),
    ]
    return _Branch(
        graph.structured_outputs,
        variables,
        tuple(outer_of.values()),
        len(variables) == len(written)
        and all(variable.shape.is_fully_defined() for variable in variables)
        and all(map(writes_only_variables, nodes)),
    )


def writes_only_variables(node: Any) -> bool:
    """Returns whether a node has no effect except on variables that it takes as inputs."""
    op = tf_internal.find_op_definition(node.op)
    return (
        op is None  # a function call: callers check the function's nodes
        or not op.is_stateful
        or any(arg.type == tf.resource.as_datatype_enum for arg in op.input_arg)
        or any(value.HasField("func") or value.list.func for value in node.attr.values())
    )


def _are_selectable(first: Any, second: Any) -> bool:
    """Returns whether two results have the same structure, dtypes and static shapes."""
    try:
        tf.nest.assert_same_structure(first, second, expand_composites=True)
    except (TypeError, ValueError):
        return False
    pairs = zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True)
    return all(_is_selectable(*pair) for pair in pairs)


def _is_selectable(first: Any, second: Any) -> bool:
    if first is None or second is None:
        return first is second
    return (
        isinstance(first, tf.Tensor)
        and isinstance(second, tf.Tensor)
        and first.dtype == second.dtype
        and first.dtype not in (tf.resource, tf.variant)
        and first.shape.is_fully_defined()
        and first.shape == second.shape
    )


def _select(predicate: Any, if_true: Any, if_false: Any) -> Any:
    if if_true is None:
        return None
    if isinstance(if_true, tf.Operation):
        return predicate
    return tf.where(predicate, if_true, if_false)


def find_placeholders(tensor: Any, stop_at: Callable[[Any], bool]) -> list[Any]:
    """Returns the placeholders of its graph from which a tensor is computed.

    Args:
        tensor: a tensor of a graph.
        stop_at: returns whether the inputs of an op are ignored.
    """
    placeholders, pending, seen = [], [tensor.op], {tensor.op.name}
    while pending:
        op = pending.pop()
        if op.type == "Placeholder":
            placeholders.append(op.outputs[0])
        elif not stop_at(op):
            for value in op.inputs:
                if value.op.name not in seen:
                    seen.add(value.op.name)
                    pending.append(value.op)
    return placeholders
