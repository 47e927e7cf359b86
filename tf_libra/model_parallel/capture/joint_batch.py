"""Differences between a step of the joint batch and steps of all ranks' own batches.

Averaged gradients are the same if the loss is a mean over examples. Values that a step computes
from all of its examples at a time, draws, and effects outside of variables are not.
"""

from typing import Any

from tf_libra.model_parallel.capture.step_dataflow import RANDOM
from tf_libra.model_parallel.capture.step_graph import StepGraph

_HARMLESS_EFFECTS = frozenset({"Assert", "Empty", "NoOp"})
_HOST_OPS = ("PyFunc", "EagerPyFunc")
# Index of the divisor among the inputs of an op.
_DIVISORS = {"Div": 1, "DivNoNan": 1, "RealDiv": 1, "Reciprocal": 0, "Inv": 0}
_SHAPES = frozenset({"Rank", "Shape", "ShapeN", "Size"})


def find_difference(graph: StepGraph) -> str | None:
    """Returns what one rank would compute otherwise than all ranks, in a clause; None if nothing.

    Metrics are left out: they have no influence on weights.
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
    return _find_weighted_mean(graph)


def _find_weighted_mean(graph: StepGraph) -> str | None:
    """Returns a division of gradients by a number that examples determine, in a clause.

    An example is the number of elements that a mask leaves. The mean over the joint batch weighs
    ranks by their numbers, the average of all ranks' means does not. A step on batches with equal
    numbers would not show it. Divisors with one element per example are the same in both.
    """
    sinks = [graph.op_index[tensor.op.name] for tensor in graph.gradients.values()]
    uses_values: list[bool] = []  # by op, whether values of examples matter, not their number
    for index, op in enumerate(graph.ops):
        inputs = [i for i in graph.input_indices(index) if graph.is_per_example[i]]
        is_static = op.type in _SHAPES and all(x.shape.is_fully_defined() for x in op.inputs)
        values = not inputs or any(uses_values[i] for i in inputs)
        uses_values.append(graph.is_per_example[index] and values and not is_static)
    for index in sorted(graph.closure(sinks)):
        op = graph.ops[index]
        if op.type in _DIVISORS:
            divisor = op.inputs[_DIVISORS[op.type]]
            if divisor.shape.rank == 0 and uses_values[graph.op_index[divisor.op.name]]:
                return (
                    f"gradients are divided by {divisor.op.name!r}, a number that all examples of a"
                    " batch determine, as with a mask: examples would have other weights"
                )
    return None


def _nodes_of_functions(graph: StepGraph) -> list[tuple[str, str]]:
    definition: Any = graph.recording.concrete.graph.as_graph_def()
    functions = definition.library.function
    return [(node.name, node.op) for function in functions for node in function.node_def]
