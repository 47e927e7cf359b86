"""Values in which a step differs from the joint batch: batch statistics and draws.

What a step computes from such values differs as well. Everything else must be the same.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.dataflow.interpreter import union
from tf_libra.model_parallel.capture.step_dataflow import RANDOM
from tf_libra.model_parallel.capture.step_graph import StepGraph
from tf_libra.model_parallel.capture.traced_ops import READS

# Advances the state of a generator by the number of generated values.
_ADVANCE = "RngReadAndSkip"
# Their values depend on the size of a batch, but not on its examples.
_SHAPES = frozenset({"Rank", "Shape", "ShapeN", "Size", "VariableShape"})
# Ops by which layers apply their weights to what they take.
_LAYERS = frozenset(
    {
        *("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "MatMul", "Mul"),
        *("Conv2D", "Conv2DBackpropInput", "Conv3D", "Conv3DBackpropInputV2"),
        *("DepthwiseConv2dNative", "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"),
    }
)


def statistics_writes(graph: StepGraph) -> Iterator[tuple[int, str]]:
    """Yields the ops that write batch statistics, each with the placeholder of the variable.

    Metrics are left out: they have no influence on weights. Writes of other resources, such as
    tables, are effects outside of variables.
    """
    for index in graph.microbatch_effects:
        for name in sorted(filter(graph.is_variable, graph.written_variables(index))):
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


def find_loss_statistics(
    graph: StepGraph, other: StepGraph, statistics: Collection[int]
) -> frozenset[int]:
    """Returns the statistics from which a loss is computed without weights of a layer in between.

    Batch normalization leaves the scale of a loss to the layers that follow it. These do not.

    Args:
        graph: the step.
        other: the same step for another batch size.
        statistics: indices of the ops that compute batch statistics.

    Returns:
        Indices of such ops, and of those that read variables with such statistics.
    """
    written = {name for _, name in statistics_writes(graph)}
    reads = {
        i for i, op in enumerate(graph.ops) if op.type in READS and written & {*graph.handles[i]}
    }
    numbers = {index: 1 << number for number, index in enumerate(sorted({*statistics, *reads}))}
    have_weights = _find_weights(graph)
    found: list[int] = []  # by op, a bit for each statistic

    def statistics_in(tensor: Any) -> int:
        index = graph.op_index[tensor.op.name]
        twin = other.op_index.get(tensor.op.name)
        its = None if twin is None else other.ops[twin].outputs[tensor.value_index]
        is_whole = its is None or str(its.shape) == str(tensor.shape)
        return found[index] | (numbers.get(index, 0) if is_whole else 0)

    for op in graph.ops:
        weighs = op.type in _LAYERS and any(
            have_weights[graph.op_index[tensor.op.name]] and tensor.shape.rank != 0
            for tensor in op.inputs
        )
        found.append(0 if weighs else union(map(statistics_in, op.inputs)))
    losses = [graph.ops[graph.op_index[name]] for name in graph.recording.losses]
    reached = union(statistics_in(tensor) for op in losses for tensor in op.outputs)
    return frozenset(index for index, number in numbers.items() if number & reached)


def _find_weights(graph: StepGraph) -> list[bool]:
    """Returns, by op, whether it is computed from trained variables, and from no examples."""
    trained = {graph.placeholder_of(variable) for variable in graph.recording.variables.values()}
    found: list[bool] = []
    for index, handles in enumerate(graph.handles):
        is_weight = bool(trained & {*handles}) or any(found[i] for i in graph.input_indices(index))
        found.append(is_weight and not graph.is_per_example[index])
    return found


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
