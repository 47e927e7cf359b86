"""Functions that a training step calls, which TensorFlow may have traced elsewhere before."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from tf_libra.tracing.label_flow import flow, nodes_of
from tf_libra.tracing.marks import Marks

# A graph's collection; graphs that are made inside of a graph begin with what it has.
_TRACED_FOR = "tf_libra/traced_for"
# Scopes of what GradientTape.gradient and tf.gradients write.
_GRADIENTS = re.compile(r"(^|/)(gradient_tape|gradients(_\d+)?)/")


def own_traces(
    function: str,
    marks: Marks,
    left_alone: Iterable[tuple[str, ...]] = (),
    names: Mapping[str, str] | None = None,
) -> Callable[[Any], Any]:
    """Of what TensorFlow finds traces by: every `tf.function` is traced for `function` alone.

    A trace made elsewhere would bring gradients that nobody averages, and one made here would,
    called elsewhere, wait there for ranks that do not come. TensorFlow finds traces by the context
    of the call, of which the training function becomes a part; and so does whether the call serves
    another gradient, or one example, because then none of its own are averaged; and which gradients
    are left to Horovod, which is known by the second trace only.

    Args:
        function: identity of the training function.
        marks: of the trace.
        left_alone: calls of `gradient` that are not marked.
        names: by which gradients are called instead of their variables' own names.
    """
    unmarked = frozenset(left_alone)
    renamed = frozenset((names or {}).items())

    def make(original: Any) -> Any:
        def make_function_context(scope_type: Any = None) -> Any:
            is_local = marks.of_examples is not None
            how = (marks.concerned, is_local, unmarked, renamed)
            key = (scope_type, "tf_libra", function, *how)
            return original(scope_type=key if marks.is_tracing_thread() else scope_type)

        return make_function_context

    return make


def mark_traced(function: str) -> None:
    """Says of the function being traced, and of those made inside, for what that is."""
    graph = tf_ops.get_default_graph()
    # Outside of any function it is the process's, which all graphs of any later trace begin with.
    if graph.building_function:
        graph.add_to_collection(_TRACED_FOR, function)


def gradients_brought(concrete: Any, function: str) -> str | None:
    """Why a `tf.types.experimental.ConcreteFunction` seems to bring gradients that nobody averages.

    So it does if it was traced elsewhere, computes gradients, and writes a trainable variable, or
    writes or returns something of the shape and dtype of one. Models that return gradients of their
    input, such as forces, usually do none of that. Gradients that are returned in another shape
    are not found.

    Args:
        concrete: what is called.
        function: identity of the training function that calls it.

    Returns:
        What it does to which variable; None where nothing suggests it.
    """
    graph = concrete.graph
    if function in graph.get_collection(_TRACED_FOR) or is_backward(graph):
        return None
    trainable = {_kind(one): one.name for one in reversed(graph.trainable_variables)}
    if not trainable:
        return None
    if not any(_GRADIENTS.search(node.name) for node in nodes_of(graph)):
        return None
    variables = {id(one): one for one in graph.variables}
    for one in (variables[key] for key in flow(graph).written):
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
    """Whether TensorFlow has made it of a function that is differentiated."""
    # What comes out of it is the tape's result, which is averaged.
    return bool(graph.name.startswith("__backward_"))
