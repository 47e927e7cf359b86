"""Gradients with respect to tensors, which stay rank-local, and a check against updates by them.

A step may differentiate with respect to an input, an activation or another rank-local tensor; that
gradient is left unchanged (`variable_resolution` decides which gradients are averaged). If the
tensor was made of a weight, as an argument of a `tf.function` may be, and its gradient updates
that weight, the ranks' weights would silently drift apart.
"""

from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow.ancestors import ancestors, find_inner
from tf_libra.capture.dataflow.forward import Derivative, follow_labels, variable_inputs
from tf_libra.capture.dataflow.traced_graph import Node, TracedGraph
from tf_libra.capture.gradient_registry import GradientRegistry
from tf_libra.capture.variable_resolution import (
    ALL_REDUCES,
    find_trained_variable,
    is_all_reduced,
    replicated_weights,
)
from tf_libra.capture.variables import variable_name
from tf_libra.internal import tf_internal

# Attribute of a rank-local gradient: the op with respect to whose output it is the gradient.
_SOURCE = "_tf_libra_gradient_by"
# Prefixes of labels: values that hold a weight, and gradients with respect to them.
_NOT_TRAINED, _SLOPE = "held/", "slope/"


def tag_gradients(sources: Any, gradients: Any, of_trained: bool = True) -> Any:
    """Returns gradients; rank-local gradients of possible weights carry their source.

    Args:
        sources: as passed to `GradientTape.gradient` or `tf.gradients`.
        gradients: its results.
        of_trained: whether gradients of trained variables are rank-local, too.
    """
    flat_sources, results = tf.nest.flatten(sources), tf.nest.flatten(gradients)
    for i, (source, gradient) in enumerate(zip(flat_sources, results, strict=True)):
        if gradient is None or not _may_hold_weight(source):
            continue
        if of_trained or find_trained_variable(source) is None:
            results[i] = _tag(gradient, source)
    return tf.nest.pack_sequence_as(gradients, results)


def check_updates(
    step_name: str, registry: GradientRegistry, graph: Any, trace: TracedGraph
) -> None:
    """Rejects updates of weights by rank-local gradients.

    Args:
        step_name: for messages.
        registry: of the trace.
        graph: the traced graph.
        trace: the same graph as plain values.

    Raises:
        ValueError: a gradient with respect to a tensor made of a weight reaches that weight.
    """
    if not any(_SOURCE in node.attributes for node in trace.all_nodes()):
        return
    weights = replicated_weights(graph, registry)
    found = follow_labels(
        trace,
        variable_inputs(graph, weights),
        ends_at=is_all_reduced,
        initial_labels={id(weight): f"{_NOT_TRAINED}{id(weight)}" for weight in weights},
        derivative=_derivative,
    )
    for weight in weights:
        if f"{_SLOPE}{id(weight)}" in found.written[id(weight)]:
            raise ValueError(
                f"{step_name} updates {variable_name(weight)!r} with the gradient with respect to"
                " a tensor made of it, which is rank-local, so the ranks' weights would drift"
                " apart: differentiate with respect to the variable, in the function that creates"
                " the tape, or average the gradient with hvd.allreduce in the step; if the variable"
                " is rank-local, name it in local_variables or create it with trainable=False"
            )


def _may_hold_weight(source: Any) -> bool:
    """Returns whether a tensor was made of variables or of a function's arguments."""
    if not isinstance(source, tf.Tensor) or isinstance(source, tf_internal.EagerTensor):
        return False
    found = ancestors(source, lambda tensor: tensor.op.type.startswith(ALL_REDUCES))
    return any(
        (
            gradient.op.type == "Placeholder"
            and getattr(gradient.graph, "outer_graph", None) is not None
        )
        or gradient.dtype == tf.resource
        for gradient in found
    )


def _tag(gradient: Any, source: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = _tag(gradient.values, source)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    is_here = source.graph is gradient.graph
    inner = source if is_here else find_inner(gradient.graph, source)
    if inner is None:
        return gradient
    result = tf.identity(gradient)
    tf_internal.set_bytes_attribute(result.op, _SOURCE, inner.op.name.encode())
    return result


def _derivative(node: Node) -> Derivative | None:
    source = node.attributes.get(_SOURCE)
    return None if source is None else Derivative(source, _slope)


def _slope(label: str) -> str | None:
    return _SLOPE + label.removeprefix(_NOT_TRAINED) if label.startswith(_NOT_TRAINED) else None
