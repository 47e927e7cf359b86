"""Differences between a step of the joint batch and steps of all ranks' own batches.

Averaged gradients are the same if the loss is a mean over examples. Values that a step computes
from all of its examples at a time, draws, and effects outside of variables are not.
"""

from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.capture.related_examples import find_relation
from tf_libra.model_parallel.capture.step_dataflow import RANDOM
from tf_libra.model_parallel.capture.step_graph import StepGraph

_HARMLESS_EFFECTS = frozenset({"Assert", "Empty", "NoOp"})
_HOST_OPS = ("PyFunc", "EagerPyFunc")


def find_difference(graph: StepGraph, other: StepGraph) -> str | None:
    """Returns what one rank would compute otherwise than all ranks, in a clause; None if nothing.

    Metrics are left out: they have no influence on weights.

    Args:
        graph: the step.
        other: the same step for another batch size.
    """
    for index in graph.microbatch_effects:
        for name in sorted(graph.written_variables(index)):
            if graph.is_written_per_example(name) and not graph.is_accumulator(name):
                variable = graph.variable_name(name)
                return f"batch statistics, such as {variable!r}, would be those of other examples"
    for index in sorted({*graph.microbatch_effects, *graph.update_effects}):
        op = graph.ops[index]
        if not graph.handles[index] and op.type not in _HARMLESS_EFFECTS:
            return f"{op.name!r} has an effect outside of variables, which only one rank would have"
    nodes = [*((op.name, op.type) for op in graph.ops), *_nodes_of_functions(graph)]
    for name, kind in nodes:
        if RANDOM.search(kind):
            return f"{name!r} draws random numbers, which would be those of the joint batch"
        if kind in _HOST_OPS:
            return f"{name!r} calls Python, which only one rank would call"
    for name, gradient in graph.gradients.items():
        if graph.recording.has_rows and not gradient.shape.is_fully_defined():
            return (
                f"the number of rows of the gradient {name!r} depends on values, so that rows of an"
                " id may be one row in the joint batch, and several in those of ranks"
            )
    related = find_relation(graph, other)
    if related is None:
        return None
    return (
        f"gradients are no mean over examples, since {related!r} takes what all examples of a batch"
        " determine together, such as their number behind a mask, or the root of their mean"
    )


def find_least_precise_dtype(graph: StepGraph) -> tf.DType:
    """Returns the floating-point dtype to which the step rounds most.

    GPUs round the factors of a matrix product to TensorFloat-32, which is as precise as float16.
    """
    found = {tensor.dtype for op in graph.ops for tensor in op.outputs}
    for node in _function_nodes(graph):
        for value in node.attr.values():
            types = [value.type, *value.list.type]
            found |= {tf.as_dtype(dtype) for dtype in types if dtype}
    if tf.config.experimental.tensor_float_32_execution_enabled():
        found |= {tf.float16 for _ in tf.config.list_logical_devices("GPU")}
    known = (tf.bfloat16, tf.float16, tf.float32)
    real = {dtype.real_dtype for dtype in found}
    return next((dtype for dtype in known if dtype in real), tf.float64)


def _nodes_of_functions(graph: StepGraph) -> list[tuple[str, str]]:
    return [(node.name, node.op) for node in _function_nodes(graph)]


def _function_nodes(graph: StepGraph) -> list[Any]:
    definition: Any = graph.recording.concrete.graph.as_graph_def()
    return [node for function in definition.library.function for node in function.node_def]
