"""Jacobians with respect to variables, such as gradients per example: each rank's own.

A rank has examples that no other rank has, so there is nothing to average before the script has
made one gradient of them, by clipping and summing, say. A step is rejected if this gradient reaches
a variable without having been all-reduced: the ranks' weights would drift apart in silence.
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

_LABEL = "_tf_libra_jacobian"


def exclude_jacobians(step_name: str, marks: GradientRegistry) -> Callable[[Any], Any]:
    """Replaces `GradientTape.jacobian` and `batch_jacobian`, whose results are not averaged."""

    def make(original: Any) -> Any:
        def call(tape: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            if not marks.concerned:
                return original(tape, target, *args, **kwargs)
            higher_order.check(step_name, marks, target)
            with marks.differentiating():
                jacobians = original(tape, target, *args, **kwargs)
            sources = args[0] if args else kwargs.get("sources", kwargs.get("source"))
            return _of_variables(sources, jacobians, marks)

        return call

    return make


def check(
    step_name: str, marks: GradientRegistry, graph: Any, trace: TracedGraph, result: Any
) -> tuple[str, ...]:
    """Whose jacobians, or what was made of them, the step returns un-averaged.

    Args:
        step_name: for messages.
        marks: of the trace.
        graph: what was traced.
        trace: the same as plain values.
        result: what the step returns.

    Raises:
        ValueError: what was made of a jacobian reaches a variable that is trained.
    """
    if not any(map(_label_of, trace.all_nodes())):
        return ()
    asked = [(plain(v), variable_name(v)) for call in marks.calls for v in call.variables]
    # Where a function that was traced before asks, it is not known for what.
    trained = {id(one): name for one, name in asked} or {
        id(one): variable_name(one) for one in variables_of(graph) if one.trainable
    }
    results = [one for one in tf.nest.flatten(result, expand_composites=True) if _is_of(one, graph)]
    found = follow_labels(
        trace,
        variable_inputs(graph, [one for one, _ in asked]),
        label=_label_of,
        ends_at=is_all_reduced,
        results=results,
    )
    for key, labels in found.written.items():
        if key in trained and labels:
            raise ValueError(
                f"{step_name} takes the jacobian of {min(labels)!r}, or its gradients in"
                " tf.vectorized_map, which are those of this rank's data alone, and updates"
                f" {trained[key]!r} with what it makes of them, so that the ranks' weights would"
                " drift apart: average that first, with hvd.allreduce in the step"
            )
    return tuple(sorted(found.returned))


def _is_of(tensor: Any, graph: Any) -> bool:
    return getattr(tensor, "graph", None) is graph


def _of_variables(sources: Any, jacobians: Any, marks: GradientRegistry) -> Any:
    flat_sources, results = tf.nest.flatten(sources), tf.nest.flatten(jacobians)
    for i, source in enumerate(flat_sources):
        if isinstance(plain(source), tf.Variable) and results[i] is not None:
            of_variable = PerExampleGradient(variable_name(source), source, results[i])
            if marks.of_examples is not None:
                marks.of_examples.append(of_variable)
            else:
                results[i] = labelled(results[i], of_variable, marks)
    return tf.nest.pack_sequence_as(jacobians, results)


def labelled(value: Any, gradient: PerExampleGradient, marks: GradientRegistry) -> Any:
    """A tensor, or what consists of tensors, that was made of gradients per example.

    Args:
        value: of one more dimension than the variable, say.
        gradient: of which it was made.
        marks: get to know it.
    """
    parts = [tf.identity(one) for one in tf.nest.flatten(value, expand_composites=True)]
    for one in parts:
        tf_internal.set_bytes_attribute(one.op, _LABEL, gradient.name.encode())
    result = tf.nest.pack_sequence_as(value, parts, expand_composites=True)
    marks.note([gradient.name], [result], [gradient.variable], is_marked=False, is_jacobian=True)
    return result


def _label_of(node: Node) -> str | None:
    return node.attributes.get(_LABEL)


def exclude_vectorized_map(marks: GradientRegistry) -> Callable[[Any], Any]:
    """Replaces what `tf.vectorized_map` ends in: nothing that its body computes is averaged."""

    def make(original: Any) -> Any:
        def call(body: Any, *args: Any, **kwargs: Any) -> Any:
            if not marks.concerned or marks.of_examples is not None:
                return original(body, *args, **kwargs)
            made_of: list[PerExampleGradient | None] = []

            @tf_internal.autograph_artifact
            def recorded(i: Any, **config: Any) -> Any:
                results = tf_internal.convert_to_autograph(body, tf_internal.autograph_context())(
                    i, **config
                )
                made_of[:] = [_gradient_in(one, marks) for one in tf.nest.flatten(results)]
                return results

            recorded.__signature__ = inspect.signature(body)  # of it TensorFlow asks what it takes
            with marks.of_each_example():
                results = original(recorded, *args, **kwargs)
            flat = tf.nest.flatten(results)
            handed = [
                one if gradient is None else labelled(one, gradient, marks)
                for one, gradient in zip(flat, made_of, strict=True)
            ]
            return tf.nest.pack_sequence_as(results, handed)

        return call

    return make


def note(marks: GradientRegistry, sources: Any, gradients: Any) -> None:
    """Remembers gradients of one example."""
    assert marks.of_examples is not None
    flat = zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True)
    for source, gradient in flat:
        if not isinstance(plain(source), tf.Variable):
            continue
        if gradient is None:
            marks.missing.append(variable_name(source))
        else:
            marks.of_examples.append(PerExampleGradient(variable_name(source), source, gradient))


def _gradient_in(result: Any, marks: GradientRegistry) -> PerExampleGradient | None:
    """The gradient that something was made of, of several the nearest."""
    known = {
        id(part): one
        for one in marks.of_examples or ()
        for part in tf.nest.flatten(one.gradient, expand_composites=True)
    }
    before = [
        one
        for part in tensors_of(result)
        for one in ancestors(part, lambda tensor: id(tensor) in known)
    ]
    for one in before:
        if id(one) in known:
            return known[id(one)]
    # What a function has computed that the body calls is not looked into.
    here = tf.compat.v1.get_default_graph()
    elsewhere = [one for one in marks.of_examples or () if _graph_of(one.gradient) is not here]
    alike = (one for one in elsewhere if one.gradient.shape == getattr(result, "shape", None))
    return next(alike, elsewhere[0]) if before and elsewhere else None


def _graph_of(gradient: Any) -> Any:
    return tf.nest.flatten(gradient, expand_composites=True)[0].graph
