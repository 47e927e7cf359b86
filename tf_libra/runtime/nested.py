"""Functions that a training step calls, which TensorFlow may have traced elsewhere before."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import function_context
from tensorflow.python.framework import ops as tf_ops

# A graph's collection; graphs that are made inside of a graph begin with what it has.
_TRACED_FOR = "tf_libra/traced_for"
# Scopes of what GradientTape.gradient and tf.gradients write.
_GRADIENTS = re.compile(r"(^|/)(gradient_tape|gradients(_\d+)?)/")
_WRITES = re.compile(r"Resource(Sparse)?Apply|ResourceScatter|Assign(Add|Sub)?VariableOp")


@contextlib.contextmanager
def own_traces(function: str) -> Iterator[None]:
    """While it lasts, every `tf.function` that is called is traced for `function` alone.

    A trace made elsewhere would bring gradients that nobody averages, and one made here would,
    called elsewhere, wait there for ranks that do not come. TensorFlow finds traces by the context
    of the call, of which the training function becomes a part.

    Args:
        function: identity of the training function.
    """
    original = function_context.make_function_context

    def make_function_context(scope_type: Any = None) -> Any:
        return original(scope_type=(scope_type, "tf_libra", function))

    function_context.make_function_context = make_function_context
    try:
        yield
    finally:
        function_context.make_function_context = original


def mark_traced(function: str) -> None:
    """Says of the default graph, and of those that will be made inside, for what it is traced."""
    tf_ops.get_default_graph().add_to_collection(_TRACED_FOR, function)


def brings_gradients(concrete: Any, function: str) -> bool:
    """Whether a `tf.types.experimental.ConcreteFunction` brings gradients that nobody averages.

    So it does if it was traced elsewhere, computes gradients, and either writes variables or
    returns something of the shape of a trainable one. Models that return gradients of their input,
    such as forces, usually do neither.

    Args:
        concrete: what is called.
        function: identity of the training function that calls it.
    """
    graph = concrete.graph
    if function in graph.get_collection(_TRACED_FOR) or _is_backward(graph):
        return False
    shapes = {(one.dtype, tuple(one.shape)) for one in graph.trainable_variables}
    if not shapes:
        return False
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    if not any(_GRADIENTS.search(node.name) for node in nodes):
        return False
    if any(_WRITES.match(node.op) for node in nodes):
        return True
    results = tf.nest.flatten(concrete.structured_outputs, expand_composites=True)
    return any(
        isinstance(one, tf.Tensor | tf.TensorSpec)
        and one.shape.is_fully_defined()
        and (one.dtype, tuple(one.shape)) in shapes
        for one in results
    )


def _is_backward(graph: Any) -> bool:
    # TensorFlow's own, of a function that the step differentiates; the tape's result is averaged.
    return graph.name.startswith("__backward_")
