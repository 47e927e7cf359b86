"""Gradients by tensors, which are not averaged, and a check against updates by them.

What a step takes the gradient by may be an input, an activation, or something that no rank has
alike: then it is this rank's own, and is left alone (`parameters` tells what is averaged). Where it
was made of a weight, as an argument of a `tf.function` may have been, and its gradient updates
this weight as it is, the ranks' weights would drift apart in silence.
"""

from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow.ancestors import ancestors, find_inner
from tf_libra.capture.dataflow.forward import Derivative, follow_labels, variable_inputs
from tf_libra.capture.dataflow.traced_graph import Node, TracedGraph
from tf_libra.capture.gradient_registry import GradientRegistry
from tf_libra.capture.variable_resolution import ALL_REDUCES, is_all_reduced, trained, weights_of
from tf_libra.capture.variables import variable_name
from tf_libra.internal import tf_internal

_BY = "_tf_libra_gradient_by"
_HELD, _SLOPE = "held/", "slope/"


def labelled(sources: Any, gradients: Any, of_trained: bool = True) -> Any:
    """Gradients, of which those that stay the rank's own, and may be a weight's, are known again.

    Args:
        sources: as `GradientTape.gradient` or `tf.gradients` is given them.
        gradients: what it has returned.
        of_trained: whether those of what is trained are the rank's own, too.
    """
    flat_sources, results = tf.nest.flatten(sources), tf.nest.flatten(gradients)
    for i, (source, gradient) in enumerate(zip(flat_sources, results, strict=True)):
        if gradient is None or not _may_be_of_a_weight(source):
            continue
        if of_trained or trained(source) is None:
            results[i] = _labelled(gradient, source)
    return tf.nest.pack_sequence_as(gradients, results)


def check(step_name: str, marks: GradientRegistry, graph: Any, trace: TracedGraph) -> None:
    """Rejects updates of weights by gradients of this rank's data alone.

    Args:
        step_name: for messages.
        marks: of the trace.
        graph: what was traced.
        trace: the same as plain values.

    Raises:
        ValueError: a gradient by what was made of a trained variable reaches that variable.
    """
    if not any(_BY in node.attributes for node in trace.all_nodes()):
        return
    weights = weights_of(graph, marks)
    found = follow_labels(
        trace,
        variable_inputs(graph, weights),
        ends_at=is_all_reduced,
        held={id(one): f"{_HELD}{id(one)}" for one in weights},
        derivative=_derivative,
    )
    for one in weights:
        if f"{_SLOPE}{id(one)}" in found.written[id(one)]:
            name = variable_name(one)
            raise ValueError(
                f"{step_name} updates {name!r} with a gradient by a tensor that was made of it,"
                " which is that of this rank's data alone, so that the ranks' weights would drift"
                " apart: take the gradient by the variable, within the function that takes it, or"
                " average it, with hvd.allreduce in the step; name the variable in"
                " local_variables, or make it with trainable=False, if it is each rank's own"
            )


def _may_be_of_a_weight(source: Any) -> bool:
    """Returns whether a tensor was made of variables, or of what a function was given."""
    if not isinstance(source, tf.Tensor) or isinstance(source, tf_internal.EagerTensor):
        return False
    found = ancestors(source, _is_all_reduce_of)
    return any(
        (one.op.type == "Placeholder" and getattr(one.graph, "outer_graph", None) is not None)
        or one.dtype == tf.resource
        for one in found
    )


def _labelled(gradient: Any, by: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = _labelled(gradient.values, by)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    inside = by if by.graph is gradient.graph else find_inner(gradient.graph, by)
    if inside is None:
        return gradient
    result = tf.identity(gradient)
    tf_internal.set_bytes_attribute(result.op, _BY, inside.op.name.encode())
    return result


def _derivative(node: Node) -> Derivative | None:
    return Derivative(node.attributes[_BY], _slope) if _BY in node.attributes else None


def _slope(label: str) -> str | None:
    return _SLOPE + label.removeprefix(_HELD) if label.startswith(_HELD) else None


def _is_all_reduce_of(tensor: Any) -> bool:
    return bool(tensor.op.type.startswith(ALL_REDUCES))
