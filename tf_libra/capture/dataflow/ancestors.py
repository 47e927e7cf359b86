"""Backward walks over the tensors of a graph that is being traced."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_libra.internal import tf_internal


def tensors_of(value: Any) -> list[Any]:
    """Returns the tensors in a structure, flat."""
    parts = tf.nest.flatten(value, expand_composites=True)
    return [part for part in parts if isinstance(part, tf.Tensor)]


def ancestors(tensor: Any, ends_at: Callable[[Any], bool] = lambda ancestor: False) -> list[Any]:
    """Returns a tensor and all that it was computed from, nearest first.

    Args:
        tensor: of a graph; any other value has no ancestors.
        ends_at: returns whether to look no further than at a tensor.
    """
    seen = {id(tensor)}
    found = [tensor] if getattr(tensor, "op", None) is not None else []
    for current in found:  # grows while it is walked
        if ends_at(current):
            continue
        for source in direct_sources(current):
            if id(source) not in seen:
                seen.add(id(source))
                found.append(source)
    return found


def direct_sources(tensor: Any) -> list[Any]:
    """Returns the tensors that a tensor is computed from; those of a capture are outside."""
    if tensor.op.type != "Placeholder":
        return list(tensor.op.inputs)
    outer = find_outer(tensor.op.graph, tensor)
    return [] if outer is None or isinstance(outer, tf_internal.EagerTensor) else [outer]


def find_outer(graph: Any, inner: Any) -> Any | None:
    """Returns the tensor that a graph has captured as `inner`, or None."""
    captures = getattr(graph, "captures", ())
    return next((outer for outer, captured in captures if captured is inner), None)


def find_inner(graph: Any, outer: Any) -> Any | None:
    """Returns the tensor as which a graph has captured `outer`, or None."""
    captures = getattr(graph, "captures", ())
    return next((captured for tensor, captured in captures if tensor is outer), None)


def enclosing_graphs(graph: Any) -> Iterator[Any]:
    """Yields a graph and those that it is nested in, innermost first."""
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)
