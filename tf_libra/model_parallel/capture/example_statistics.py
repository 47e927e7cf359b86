"""Values in which a step differs from the joint batch: batch statistics and draws.

What a step computes from such values differs as well. Everything else must be the same.
"""

from collections.abc import Iterable, Iterator

import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.model_parallel.capture.step_dataflow import RANDOM
from tf_libra.model_parallel.capture.step_graph import StepGraph

# Advances the state of a generator by the number of generated values.
_ADVANCE = "RngReadAndSkip"
# Their values depend on the size of a batch, but not on its examples.
_SHAPES = frozenset({"Rank", "Shape", "ShapeN", "Size", "VariableShape"})


def statistics_writes(graph: StepGraph) -> Iterator[tuple[int, str]]:
    """Yields the ops that write batch statistics, each with the placeholder of the variable.

    Metrics are left out: they have no influence on weights.
    """
    for index in graph.microbatch_effects:
        for name in sorted(graph.written_variables(index)):
            is_statistic = graph.is_written_per_example(name) and not graph.is_accumulator(name)
            if is_statistic and graph.ops[index].type != _ADVANCE:
                yield index, name


def find_statistics(graph: StepGraph, other: StepGraph) -> frozenset[int]:
    """Returns the ops that compute batch statistics, as the mean, from all examples at a time.

    Args:
        graph: the step.
        other: the same step for another batch size.
    """
    found, seen = set[int](), set[int]()
    pending = [i for index, _ in statistics_writes(graph) for i in graph.input_indices(index)]
    while pending:
        index = pending.pop()
        op = graph.ops[index]
        twin = other.op_index.get(op.name)
        if index in seen or twin is None or not graph.is_per_example[index]:
            continue
        seen.add(index)
        pairs = zip(op.inputs, other.ops[twin].inputs, strict=True)
        if not any(str(tensor.shape) != str(its.shape) for tensor, its in pairs):
            pending += graph.input_indices(index)
        elif op.type not in _SHAPES:
            found.add(index)
    return frozenset(found)


def find_draws(graph: StepGraph) -> frozenset[int]:
    """Returns the ops that draw random numbers, or call functions that do."""
    trace = traced_graph.read(graph.recording.concrete.graph)
    return frozenset(
        graph.op_index[node.name]
        for node in trace.body.nodes
        if _draws(node.op) or any(_draws(inner.op) for inner in trace.nodes_within(node.functions))
    )


def _draws(kind: str) -> bool:
    return bool(RANDOM.search(kind)) or kind == _ADVANCE


def find_seeds(graph: StepGraph, draws: Iterable[int]) -> frozenset[str]:
    """Returns the placeholders of the variables from whose integers random numbers are drawn.

    Every microbatch changes them, by as many values as it draws.
    """
    used = {handle for index in graph.closure(draws) for handle in graph.handles[index]}
    kinds = {id(variable.handle): variable.dtype for variable in _variables(graph)}
    return frozenset(
        handle for handle in used if kinds.get(id(graph.captures[handle]), tf.float32).is_integer
    )


def find_influenced(
    graph: StepGraph, sources: frozenset[int]
) -> tuple[frozenset[str], frozenset[int]]:
    """Returns the variables and results that are computed from the outputs of ops.

    Args:
        graph: the step.
        sources: indices of the ops.

    Returns:
        Placeholders of the variables, and numbers of the results.
    """
    influenced: list[bool] = []
    writes: dict[str, set[str]] = {}
    for index, op in enumerate(graph.ops):
        influenced.append(
            index in sources
            or any(influenced[i] for i in graph.input_indices(index))
            or graph.follows_write(index, writes)
        )
        for handle in graph.written_variables(index) if influenced[index] else ():
            writes.setdefault(handle, set()).add(op.name)
    concrete = graph.recording.concrete
    leaves = tf.nest.flatten(concrete.structured_outputs)
    numbers = [number for number, leaf in enumerate(leaves) if _is_tensor(leaf)]
    are_known = len(numbers) == len(concrete.outputs)  # each result is one tensor
    pairs = zip(numbers, concrete.outputs if are_known else [None] * len(numbers), strict=True)
    results = {
        number
        for number, tensor in pairs
        if tensor is None or influenced[graph.op_index[tensor.op.name]]
    }
    return frozenset(writes), frozenset(results)


def _is_tensor(leaf: object) -> bool:
    return bool(tf.is_tensor(leaf)) or isinstance(leaf, tf.TypeSpec)


def _variables(graph: StepGraph) -> Iterable[tf.Variable]:
    variables: Iterable[tf.Variable] = graph.recording.concrete.graph.variables
    return variables
