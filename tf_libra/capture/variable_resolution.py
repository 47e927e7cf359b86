"""The variable behind the source of a gradient: a variable, or a tensor read from variables.

Functional scripts read the weights and watch the result: one long vector, a part, or weights moved
by an averaged gradient. They update variables with the gradient with respect to that tensor. The
tensor has the same value on every rank, as the variables have, so its gradient is averaged.
"""

from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow.ancestors import (
    ancestors,
    direct_sources,
    enclosing_graphs,
    find_outer,
)
from tf_libra.capture.dataflow.traced_graph import Node
from tf_libra.capture.gradient_registry import GradientRegistry
from tf_libra.capture.variables import plain, variables_of
from tf_libra.internal import tf_internal

# Ops whose outputs are the same on every rank, whatever their inputs are.
ALL_REDUCES = (
    "LibraAllReduce",
    "HorovodAllreduce",
    "HorovodGroupedAllreduce",
    "HorovodAllgather",
    "HorovodGroupedAllgather",
    "HorovodBroadcast",
)
# Ops that select from one input or rearrange it, and repeat nothing.
_REARRANGE = frozenset(
    {"Identity", "Cast", "Reshape", "Transpose", "Squeeze", "ExpandDims", "Slice"}
    | {"StridedSlice", "Split", "SplitV", "Unpack", "ReadVariableOp"}
)


def find_trained_variable(source: Any) -> Any | None:
    """Returns the variable with respect to which a source differentiates.

    Args:
        source: as passed to `GradientTape.gradient`.

    Returns:
        A TensorFlow or Keras variable; one of them if the source was made of several. None for
        rank-local sources, such as inputs and activations.
    """
    if isinstance(plain(source), tf.Variable):
        dtype = tf.as_dtype(source.dtype)
        return source if dtype.is_floating or dtype.is_complex else None  # other gradients are zero
    if not isinstance(source, tf.Tensor) or isinstance(source, tf_internal.EagerTensor):
        return None
    weights = _weights_read_by(source)
    for weight in weights:
        if source.shape.rank is not None and source.shape.as_list() == weight.shape.as_list():
            return weight
    if len(weights) == 1 and _is_part_of_variable(source):
        return weights[0]
    sizes = [weight.shape.num_elements() for weight in weights]
    known = [size for size in sizes if size is not None]
    # Rows per example are made of the same weights, and have another number of elements.
    is_all_of_them = len(known) == len(sizes) and source.shape.num_elements() == sum(known)
    return weights[0] if weights and is_all_of_them else None


def is_all_reduced(node: Node) -> bool:
    """Returns whether a node's outputs are the same on every rank, whatever its inputs are."""
    return node.op.startswith(ALL_REDUCES)


def replicated_weights(graph: Any, registry: GradientRegistry) -> list[Any]:
    """Returns the trained variables of a trace that are the same on every rank."""
    return [
        variable
        for variable in variables_of(graph)
        if variable.trainable
        and variable.dtype.is_floating
        and not registry.is_rank_local(variable)
    ]


def _weights_read_by(tensor: Any) -> list[Any]:
    """Returns the weights that a tensor was made of; none if other tensors were used, too."""
    found = variables_read_by(tensor)
    # A scalar that is not trained is a setting.
    if any(not variable.trainable and variable.shape.rank != 0 for variable in found):
        return []
    return [variable for variable in found if variable.trainable]


def variables_read_by(tensor: Any) -> list[Any]:
    """Returns the variables that a tensor was made of; none if rank-local data were used, too."""
    found: dict[int, Any] = {}
    for ancestor in ancestors(
        tensor, lambda current: _is_equal_on_ranks(current) or _is_read(current)
    ):
        if _is_read(ancestor):
            variable = _variable_of(ancestor.op.inputs[0])
            if variable is None:
                return []
            found[id(variable)] = variable
        # Data, random numbers and results of functions count as rank-local.
        elif not _is_equal_on_ranks(ancestor) and (
            ancestor.op._is_stateful or not direct_sources(ancestor)
        ):
            return []
    return list(found.values())


def _is_part_of_variable(tensor: Any) -> bool:
    """Returns whether a tensor has some elements of a variable, each of them once."""
    made_of = ancestors(tensor, lambda ancestor: _is_equal_on_ranks(ancestor) or _is_read(ancestor))
    return all(
        _is_equal_on_ranks(ancestor) or ancestor.op.type in _REARRANGE for ancestor in made_of
    )


def _is_equal_on_ranks(tensor: Any) -> bool:
    """Returns whether a tensor is the same on every rank, whatever it was computed from."""
    return bool(tensor.op.type == "Const" or tensor.op.type.startswith(ALL_REDUCES))


def _is_read(tensor: Any) -> bool:
    return bool(tensor.op.type == "ReadVariableOp")


def _variable_of(handle: Any) -> Any | None:
    """Returns the variable of a handle, which functions and branches may have captured."""
    known: dict[int, Any] = {}
    for graph in enclosing_graphs(tf.compat.v1.get_default_graph()):
        known |= {id(variable.handle): variable for variable in variables_of(graph)}
        outer = find_outer(graph, handle)
        handle = handle if outer is None else outer
    return known.get(id(handle))
