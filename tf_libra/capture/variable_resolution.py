"""The source of a gradient, if it is a variable, or what was read of variables.

Scripts in the functional manner read the weights, watch what they have read, or one long vector of
it, or a part, or weights moved by an averaged gradient, and update variables with the gradient of
that. On every rank it is the same value, as that of a variable is; so its gradient is averaged
like that of a variable.
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
# Ops that select from one input, or rearrange it, and repeat nothing.
_ARRANGE = frozenset(
    {"Identity", "Cast", "Reshape", "Transpose", "Squeeze", "ExpandDims", "Slice"}
    | {"StridedSlice", "Split", "SplitV", "Unpack", "ReadVariableOp"}
)


def trained(source: Any) -> Any | None:
    """The variable that is differentiated by, if one is.

    Args:
        source: as `GradientTape.gradient` is given it.

    Returns:
        A variable of TensorFlow's or Keras'; of what was made of several, one of them. None of
        anything else, such as inputs and activations, which are a rank's own.
    """
    if isinstance(plain(source), tf.Variable):
        kind = tf.as_dtype(source.dtype)
        return source if kind.is_floating or kind.is_complex else None  # nothing but zeros
    if not isinstance(source, tf.Tensor) or isinstance(source, tf_internal.EagerTensor):
        return None
    found = _read_by(source)
    for one in found:
        if source.shape.rank is not None and source.shape.as_list() == one.shape.as_list():
            return one
    if len(found) == 1 and _is_a_part(source):
        return found[0]
    sizes = [one.shape.num_elements() for one in found]
    known = [one for one in sizes if one is not None]
    # Not rows for each example, which were made of the same weights.
    is_all_of_them = len(known) == len(sizes) and source.shape.num_elements() == sum(known)
    return found[0] if found and is_all_of_them else None


def is_all_reduced(node: Node) -> bool:
    """Returns whether a node's outputs are the same on every rank, whatever its inputs are."""
    return node.op.startswith(ALL_REDUCES)


def weights_of(graph: Any, marks: GradientRegistry) -> list[Any]:
    """The variables of a trace that every rank is to have alike, and trains."""
    return [
        one
        for one in variables_of(graph)
        if one.trainable and one.dtype.is_floating and not marks.is_own(one)
    ]


def _read_by(tensor: Any) -> list[Any]:
    """The weights that a tensor was made of, if of nothing that a rank has for itself."""
    found = read_by(tensor)
    if any(not one.trainable and one.shape.rank != 0 for one in found):  # one number is a setting
        return []
    return [one for one in found if one.trainable]


def read_by(tensor: Any) -> list[Any]:
    """The variables that a tensor of a trace was made of; none where of a rank's own data, too."""
    found: dict[int, Any] = {}
    for one in ancestors(tensor, lambda current: _is_alike(current) or _is_read(current)):
        if _is_read(one):
            variable = _variable_of(one.op.inputs[0])
            if variable is None:
                return []
            found[id(variable)] = variable
        # What is not looked into is taken for the rank's own: data, random numbers, functions.
        elif not _is_alike(one) and (one.op._is_stateful or not direct_sources(one)):
            return []
    return list(found.values())


def _is_a_part(tensor: Any) -> bool:
    """Returns whether it is some elements of a variable, each of them once."""
    made_of = ancestors(tensor, lambda one: _is_alike(one) or _is_read(one))
    return all(_is_alike(one) or one.op.type in _ARRANGE for one in made_of)


def _is_alike(tensor: Any) -> bool:
    """Returns whether it is the same on every rank, whatever it was computed from."""
    return bool(tensor.op.type == "Const" or tensor.op.type.startswith(ALL_REDUCES))


def _is_read(tensor: Any) -> bool:
    return bool(tensor.op.type == "ReadVariableOp")


def _variable_of(handle: Any) -> Any | None:
    """The variable of a handle, perhaps one that functions and branches have captured."""
    known: dict[int, Any] = {}
    for graph in enclosing_graphs(tf.compat.v1.get_default_graph()):
        known |= {id(one.handle): one for one in variables_of(graph)}
        outer = find_outer(graph, handle)
        handle = handle if outer is None else outer
    return known.get(id(handle))
