"""Functions that a training step calls, which TensorFlow may have traced elsewhere before."""

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.dataflow.forward import follow_labels, variable_inputs
from tf_libra.capture.gradient_registry import GradientRegistry

# A graph collection; nested graphs start with a copy of their outer graph's collections.
_TRACED_FOR = "tf_libra/traced_for"
# Scopes of the ops that GradientTape.gradient and tf.gradients write.
_GRADIENTS = re.compile(r"(^|/)(gradient_tape|gradients(_\d+)?)/")


def retrace_nested_functions(registry: GradientRegistry) -> Callable[[Any], Any]:
    """Makes each trace of a step retrace every `tf.function` that the step calls.

    Without it a step could reuse a trace that was made:

    - outside the step: its gradients are not averaged;
    - in the step, if the function is called elsewhere: its all-reduces wait for absent ranks;
    - in another trace of the step: this trace's registry lacks its gradients, for example after a
      reset of the job, or if an outer tape or Horovod treats the gradients differently here.

    TensorFlow finds traces by the context of a call, so the registry becomes a part of that
    context. Two more facts join it, because they decide whether gradients are averaged: whether
    the call is part of another gradient, and whether it is traced for one example.
    """

    def make(original: Any) -> Any:
        def make_function_context(scope_type: Any = None) -> Any:
            is_local = registry.per_example is not None
            key = (scope_type, "tf_libra", registry.key, registry.should_reduce, is_local)
            return original(scope_type=key if registry.is_tracing_thread() else scope_type)

        return make_function_context

    return make


def tag_graph(registry: GradientRegistry) -> None:
    """Records the registry in the graph that is being traced, and so in its nested graphs."""
    graph = tf.compat.v1.get_default_graph()
    # Outside of functions it is the process's graph, whose collections every later trace copies.
    if graph.building_function:
        graph.add_to_collection(_TRACED_FOR, registry.key)


def describe_foreign_gradients(concrete: Any, registry: GradientRegistry) -> str | None:
    """Describes the use that a `ConcreteFunction` seems to make of unaveraged gradients.

    Such a function was traced elsewhere, computes gradients, and writes a trainable variable, or
    writes or returns a tensor with the shape and dtype of one. Models that return gradients of
    their input, such as forces, usually do none of that. The check misses gradients that are
    returned in another shape.

    Args:
        concrete: the called function.
        registry: of the trace that calls it.

    Returns:
        A verb and an object, for messages; None if there is no such use.
    """
    graph = concrete.graph
    if registry.key in graph.get_collection(_TRACED_FOR) or is_backward(graph):
        return None
    trainable = {
        _kind(trainable_variable): trainable_variable.name
        for trainable_variable in reversed(graph.trainable_variables)
    }
    if not trainable:
        return None
    trace = traced_graph.read(graph)
    if not any(_GRADIENTS.search(node.name) for node in trace.all_nodes()):
        return None
    variables = {id(variable): variable for variable in graph.variables}
    written = follow_labels(trace, variable_inputs(graph)).written
    for variable in (variables[key] for key in written):
        if variable.trainable:
            return f"writes {variable.name!r}"
        if variable.shape.rank and _kind(variable) in trainable:
            return f"writes {variable.name!r}, which is like {trainable[_kind(variable)]!r}"
    for result in tf.nest.flatten(concrete.structured_outputs):
        for kind, name in trainable.items():
            if _is_like(result, *kind):
                return f"returns a tensor like {name!r}"
    return None


def _kind(variable: Any) -> tuple[tf.DType, tuple[int | None, ...]]:
    return variable.dtype, tuple(variable.shape)


def _is_like(result: Any, dtype: tf.DType, shape: tuple[int | None, ...]) -> bool:
    first = 0
    if isinstance(result, tf.IndexedSlices):  # any number of a gradient's rows
        result, first = result.values, 1
    if not isinstance(result, tf.Tensor | tf.TensorSpec) or result.dtype != dtype or not shape:
        return False
    return result.shape.rank == len(shape) and tuple(result.shape)[first:] == shape[first:]


def is_backward(graph: Any) -> bool:
    """Returns whether TensorFlow made a graph as the backward function of a function."""
    # Its results become the outer tape's result, which is averaged.
    return bool(graph.name.startswith("__backward_"))
