"""Functions that a training step calls, which TensorFlow may have traced elsewhere before."""

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.dataflow.forward import follow_labels, variable_inputs
from tf_libra.capture.gradient_registry import GradientRegistry

# A graph's collection; graphs that are made inside of a graph begin with what it has.
_TRACED_FOR = "tf_libra/traced_for"
# Scopes of what GradientTape.gradient and tf.gradients write.
_GRADIENTS = re.compile(r"(^|/)(gradient_tape|gradients(_\d+)?)/")


def own_traces(marks: GradientRegistry) -> Callable[[Any], Any]:
    """Make every `tf.function` that a step calls trace again for each trace of the step.

    A trace made outside of the step brings gradients that are not averaged. One made in the step
    waits, if called elsewhere, for ranks that do not come. One made in another trace of the step
    brings gradients that the registry of this trace does not know: after a reset of the job, or
    if an outer tape or Horovod treats them differently here. TensorFlow finds traces by the context
    of the call, so the registry becomes a part of that context. So do two more facts: if the call
    serves another gradient, or one example, its own gradients are not averaged.

    Args:
        marks: of the trace.
    """

    def make(original: Any) -> Any:
        def make_function_context(scope_type: Any = None) -> Any:
            is_local = marks.of_examples is not None
            key = (scope_type, "tf_libra", marks.key, marks.concerned, is_local)
            return original(scope_type=key if marks.is_tracing_thread() else scope_type)

        return make_function_context

    return make


def mark_traced(marks: GradientRegistry) -> None:
    """Note in the graph being traced, and in those made inside, which registry it belongs to."""
    graph = tf.compat.v1.get_default_graph()
    # Outside of any function it is the process's, which all graphs of any later trace begin with.
    if graph.building_function:
        graph.add_to_collection(_TRACED_FOR, marks.key)


def gradients_brought(concrete: Any, marks: GradientRegistry) -> str | None:
    """Returns why a `tf.types.experimental.ConcreteFunction` seems to bring unaveraged gradients.

    So it does if it was traced elsewhere, computes gradients, and writes a trainable variable, or
    writes or returns something of the shape and dtype of one. Models that return gradients of their
    input, such as forces, usually do none of that. Gradients that are returned in another shape
    are not found.

    Args:
        concrete: what is called.
        marks: of the trace that calls it.

    Returns:
        What it does to which variable; None where nothing suggests it.
    """
    graph = concrete.graph
    if marks.key in graph.get_collection(_TRACED_FOR) or is_backward(graph):
        return None
    trainable = {_kind(one): one.name for one in reversed(graph.trainable_variables)}
    if not trainable:
        return None
    trace = traced_graph.read(graph)
    if not any(_GRADIENTS.search(node.name) for node in trace.all_nodes()):
        return None
    variables = {id(one): one for one in graph.variables}
    for one in (variables[key] for key in follow_labels(trace, variable_inputs(graph)).written):
        if one.trainable:
            return f"writes {one.name!r}"
        if one.shape.rank and _kind(one) in trainable:
            return f"writes {one.name!r}, which is like {trainable[_kind(one)]!r}"
    for result in tf.nest.flatten(concrete.structured_outputs):
        for kind, name in trainable.items():
            if _is_like(result, *kind):
                return f"returns a tensor like {name!r}"
    return None


def _kind(variable: Any) -> tuple[tf.DType, tuple[int | None, ...]]:
    return variable.dtype, tuple(variable.shape)


def _is_like(result: Any, dtype: tf.DType, shape: tuple[int | None, ...]) -> bool:
    first = 0
    if isinstance(result, tf.IndexedSlices):  # rows of a gradient, however many
        result, first = result.values, 1
    if not isinstance(result, tf.Tensor | tf.TensorSpec) or result.dtype != dtype or not shape:
        return False
    return result.shape.rank == len(shape) and tuple(result.shape)[first:] == shape[first:]


def is_backward(graph: Any) -> bool:
    """Returns whether TensorFlow has made it of a function that is differentiated."""
    # What comes out of it is the tape's result, which is averaged.
    return bool(graph.name.startswith("__backward_"))
