"""Functions that a training step calls, which TensorFlow may have traced elsewhere before."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
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
    if function in graph.get_collection(_TRACED_FOR) or _is_backward(graph):
        return None
    trainable = {_kind(one): one.name for one in reversed(graph.trainable_variables)}
    if not trainable:
        return None
    definition = graph.as_graph_def()
    bodies = {body.signature.name: body for body in definition.library.function}
    nodes = [*definition.node, *(node for body in bodies.values() for node in body.node_def)]
    if not any(_GRADIENTS.search(node.name) for node in nodes):
        return None
    variables = {id(one.handle): one for one in graph.variables}
    handles = {
        inside.op.name: variables[id(outside)]
        for outside, inside in graph.captures
        if id(outside) in variables
    }
    for one in _written(definition.node, handles, bodies):
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


def _written(
    nodes: Iterable[Any], handles: Mapping[str, Any], bodies: Mapping[str, Any]
) -> Iterator[Any]:
    """Variables that nodes write, also in the functions that they call; handles by their names."""
    for node in nodes:
        inputs = [one.partition(":")[0] for one in node.input if not one.startswith("^")]
        if _WRITES.match(node.op) and inputs[0] in handles:
            yield handles[inputs[0]]
        for body in _called(node, bodies):
            names = [argument.name for argument in body.signature.input_arg]
            # A branch is not given the first input, by which it is chosen.
            given = zip(names, inputs[len(inputs) - len(names) :], strict=False)
            inner = {name: handles[one] for name, one in given if one in handles}
            yield from _written(body.node_def, inner, bodies)


def _called(node: Any, bodies: Mapping[str, Any]) -> list[Any]:
    functions = [f for value in node.attr.values() for f in (value.func, *value.list.func)]
    return [bodies[function.name] for function in functions if function.name in bodies]


def _is_backward(graph: Any) -> bool:
    # TensorFlow's own, of a function that the step differentiates; the tape's result is averaged.
    return bool(graph.name.startswith("__backward_"))
