"""Gradients per example, by jacobians or `tf.vectorized_map`, which stay rank-local.

Each rank has other examples, so per-example gradients have nothing to average. A script makes one
gradient of them, by clipping and summing for instance. A step is rejected if this gradient
reaches a variable without an all-reduce, because the ranks' weights would silently drift apart.

The body of `tf.vectorized_map` is traced once, and its ops are rewritten for all examples.
"""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_libra.capture import higher_order
from tf_libra.capture.dataflow.ancestors import ancestors, tensors_of
from tf_libra.capture.dataflow.forward import follow_labels, variable_inputs
from tf_libra.capture.dataflow.traced_graph import Node, TracedGraph
from tf_libra.capture.gradient_registry import GradientRegistry, PerExampleGradient
from tf_libra.capture.variable_resolution import is_all_reduced
from tf_libra.capture.variables import plain, variable_name, variables_of
from tf_libra.internal import tf_internal

# Attribute of tensors made of per-example gradients: the name of the variable.
_LABEL = "_tf_libra_jacobian"


def exclude_jacobians(step_name: str, registry: GradientRegistry) -> Callable[[Any], Any]:
    """Replaces `GradientTape.jacobian` and `batch_jacobian`, whose results are not averaged."""

    def make(original: Any) -> Any:
        def call(tape: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            if not registry.should_reduce:
                return original(tape, target, *args, **kwargs)
            higher_order.reject_second_derivative(step_name, registry, target)
            with registry.differentiating():
                jacobians = original(tape, target, *args, **kwargs)
            sources = args[0] if args else kwargs.get("sources", kwargs.get("source"))
            return _tag_jacobians(sources, jacobians, registry)

        return call

    return make


def exclude_vectorized_map(registry: GradientRegistry) -> Callable[[Any], Any]:
    """Replaces the root of `tf.vectorized_map`, so that gradients in its body are not averaged."""

    def make(original: Any) -> Any:
        def call(body: Any, *args: Any, **kwargs: Any) -> Any:
            if not registry.should_reduce or registry.per_example is not None:
                return original(body, *args, **kwargs)
            made_of: list[PerExampleGradient | None] = []

            @tf_internal.autograph_artifact
            def recorded(i: Any, **config: Any) -> Any:
                converted = tf_internal.convert_to_autograph(body, tf_internal.autograph_context())
                results = converted(i, **config)
                made_of[:] = [_gradient_in(tensor, registry) for tensor in tf.nest.flatten(results)]
                return results

            recorded.__signature__ = inspect.signature(body)  # TensorFlow inspects the arguments
            with registry.collecting_per_example():
                results = original(recorded, *args, **kwargs)
            tagged = [
                value if gradient is None else tag_provenance(value, gradient, registry)
                for value, gradient in zip(tf.nest.flatten(results), made_of, strict=True)
            ]
            return tf.nest.pack_sequence_as(results, tagged)

        return call

    return make


def record_gradients(registry: GradientRegistry, sources: Any, gradients: Any) -> None:
    """Records gradients of one example."""
    assert registry.per_example is not None
    flat = zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True)
    for source, gradient in flat:
        if not isinstance(plain(source), tf.Variable):
            continue
        name = variable_name(source)
        if gradient is None:
            registry.missing.append(name)
        else:
            registry.per_example.append(PerExampleGradient(name, source, gradient))


def tag_provenance(value: Any, gradient: PerExampleGradient, registry: GradientRegistry) -> Any:
    """Returns a value whose tensors carry the label of a per-example gradient.

    Args:
        value: tensors made of the gradient, with one more dimension than the variable for instance.
        gradient: from which the value was made.
        registry: records the value as a jacobian.
    """
    parts = [tf.identity(part) for part in tf.nest.flatten(value, expand_composites=True)]
    for part in parts:
        tf_internal.set_bytes_attribute(part.op, _LABEL, gradient.name.encode())
    result = tf.nest.pack_sequence_as(value, parts, expand_composites=True)
    registry.record_call(
        [gradient.name], [result], [gradient.variable], is_reduced=False, is_jacobian=True
    )
    return result


def check_updates(
    step_name: str, registry: GradientRegistry, graph: Any, trace: TracedGraph, result: Any
) -> tuple[str, ...]:
    """Rejects updates by per-example gradients that are not all-reduced.

    Args:
        step_name: for messages.
        registry: of the trace.
        graph: the traced graph.
        trace: the same graph as plain values.
        result: the value that the step returns.

    Returns:
        Names of the variables of which the step returns jacobians, or values made of them.

    Raises:
        ValueError: a value made of a jacobian reaches a trained variable.
    """
    if not any(map(_label_of, trace.all_nodes())):
        return ()
    requested = [(plain(v), variable_name(v)) for call in registry.calls for v in call.variables]
    # A function that was traced before hides its variables.
    trained = {id(variable): name for variable, name in requested} or {
        id(variable): variable_name(variable)
        for variable in variables_of(graph)
        if variable.trainable
    }
    results = [
        tensor
        for tensor in tf.nest.flatten(result, expand_composites=True)
        if getattr(tensor, "graph", None) is graph
    ]
    found = follow_labels(
        trace,
        variable_inputs(graph, [variable for variable, _ in requested]),
        label=_label_of,
        ends_at=is_all_reduced,
        results=results,
    )
    for key, labels in found.written.items():
        if key in trained and labels:
            raise ValueError(
                f"{step_name} updates {trained[key]!r} with values made of per-example gradients"
                f" of {min(labels)!r} (tape.jacobian, or a tape in tf.vectorized_map), which are"
                " rank-local, so the ranks' weights would drift apart: average these values first,"
                " with hvd.allreduce in the step"
            )
    return tuple(sorted(found.returned))


def _tag_jacobians(sources: Any, jacobians: Any, registry: GradientRegistry) -> Any:
    flat_sources, results = tf.nest.flatten(sources), tf.nest.flatten(jacobians)
    for i, source in enumerate(flat_sources):
        if isinstance(plain(source), tf.Variable) and results[i] is not None:
            gradient = PerExampleGradient(variable_name(source), source, results[i])
            if registry.per_example is not None:
                registry.per_example.append(gradient)
            else:
                results[i] = tag_provenance(results[i], gradient, registry)
    return tf.nest.pack_sequence_as(jacobians, results)


def _label_of(node: Node) -> str | None:
    return node.attributes.get(_LABEL)


def _gradient_in(result: Any, registry: GradientRegistry) -> PerExampleGradient | None:
    """Returns the nearest gradient from which a value was made."""
    known = {
        id(part): gradient
        for gradient in registry.per_example or ()
        for part in tf.nest.flatten(gradient.gradient, expand_composites=True)
    }
    before = [
        ancestor
        for part in tensors_of(result)
        for ancestor in ancestors(part, lambda tensor: id(tensor) in known)
    ]
    for ancestor in before:
        if id(ancestor) in known:
            return known[id(ancestor)]
    # A function called by the body hides which gradients its results are made of.
    here = tf.compat.v1.get_default_graph()
    elsewhere = [
        gradient
        for gradient in registry.per_example or ()
        if _graph_of(gradient.gradient) is not here
    ]
    alike = (
        gradient
        for gradient in elsewhere
        if gradient.gradient.shape == getattr(result, "shape", None)
    )
    return next(alike, elsewhere[0]) if before and elsewhere else None


def _graph_of(gradient: Any) -> Any:
    return tf.nest.flatten(gradient, expand_composites=True)[0].graph
