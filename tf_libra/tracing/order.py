"""In which order gradients are produced, and names for them that every trace gives alike."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops


def backward_order(gradients: Sequence[Any], labels: Sequence[int]) -> list[int]:
    """Labels of the gradients in the order in which backward computation can produce them.

    A gradient is as late as the longest chain of ops that leads to it is long. Of equals the one
    of the later variable comes first: variables are made in forward order.

    Args:
        gradients: tensors or `IndexedSlices` of the graph that is being traced.
        labels: one per gradient.
    """
    depth: dict[Any, int] = {}
    # Ops are listed in the order in which they were made, so inputs come before consumers.
    for operation in tf_ops.get_default_graph().get_operations():
        inputs = [depth[x.op] for x in operation.inputs if x.op in depth]
        depth[operation] = 1 + max(inputs, default=0)
    lateness = [
        max(depth.get(tensor.op, 0) for tensor in tf.nest.flatten(gradient, expand_composites=True))
        for gradient in gradients
    ]
    order = sorted(range(len(labels)), key=lambda i: (lateness[i], -i))
    return [labels[i] for i in order]


def unique_name(name: str, taken: Sequence[tuple[str, tf.Graph]]) -> str:
    """`name`, with a number where the graph that is being traced has a gradient of that name.

    Args:
        name: of a variable.
        taken: names of gradients before it, and the graphs that they are in.
    """
    graph = tf_ops.get_default_graph()
    others = {
        other
        for other, where in taken
        if other.startswith(name) and not _are_traces_of_one_function(graph, where)
    }
    candidates = (f"{name}#{i}" if i else name for i in range(len(others) + 1))
    return next(candidate for candidate in candidates if candidate not in others)


def _are_traces_of_one_function(one: tf.Graph, other: tf.Graph) -> bool:
    """Whether these are, or are in, two traces of the same nested function.

    TensorFlow traces a function twice if the first trace makes variables, and again for other
    shapes. The gradients of each trace are then the same ones.
    """
    mine, theirs = _outermost_first(one), _outermost_first(other)
    for here, there in zip(mine, theirs, strict=False):
        if here is not there:
            return bool(here.name == there.name)
    return False


def _outermost_first(graph: Any) -> list[Any]:
    graphs = [graph]
    while (outer := getattr(graphs[-1], "outer_graph", None)) is not None:
        graphs.append(outer)
    return graphs[::-1]
