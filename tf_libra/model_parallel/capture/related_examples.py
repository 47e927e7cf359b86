"""Steps whose examples influence each other's gradients.

The gradient of a mean adds up gradients of single examples. Such a sum depends on all examples, and
is added to others on its way to a weight. If a sum divides, is multiplied by another one, or
returns to single examples, the loss is no mean: the gradient of the joint batch is another one than
the average of the gradients of its parts, even if a batch happens to show no difference.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.dataflow.interpreter import Frame, Interpreter, Value, union
from tf_libra.capture.dataflow.traced_graph import BRANCHES, Body, Node, TracedGraph
from tf_libra.model_parallel.capture.step_graph import StepGraph

# Labels of a value that depends on values of examples. Its size may be equal for all batch sizes,
# or depend on values, too.
_DEPENDS, _IS_WHOLE, _HAS_DATA_SIZE = 1, 2, 4
# Instead of the number of elements of a tensor; with a pair of examples each, it grows as a square.
_HAS_PAIRS, _GROWS, _UNKNOWN = -3, -2, -1

# Index of the divisor among the inputs of an op.
_DIVISORS = {"Div": 1, "DivNoNan": 1, "RealDiv": 1, "Reciprocal": 0, "Inv": 0}
_PRODUCTS = frozenset(
    {"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "MatMul", "Mul", "MulNoNan"}
)
_SHAPES = frozenset({"Rank", "Shape", "ShapeN", "Size"})
_CONSTANTS = frozenset({"OnesLike", "ZerosLike"})
# Ops that combine elements along all axes but the first, along the last one, or along given ones.
_WINDOWS = frozenset(
    {
        *("AvgPool", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "Dilation2D", "MaxPool"),
        *("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter"),
    }
)
_LAST_AXIS = frozenset({"LogSoftmax", "Softmax", "TopKV2"})
_AXES_INPUT = {"Cumprod": 1, "Cumsum": 1, "CumulativeLogsumexp": 1, "ReverseV2": 1, "Roll": 2}
# Ops whose values determine the size of their outputs.
_SELECTIONS = frozenset(
    {"DynamicPartition", "ListDiff", "Range", "Unique", "UniqueV2", "UniqueWithCounts", "Where"}
)


def find_relation(
    graph: StepGraph,
    other: StepGraph,
    statistics: Collection[str] = (),
    reads: Collection[str] = (),
) -> str | None:
    """Returns the first op that lets examples influence each other's gradients; None without one.

    Args:
        graph: the step.
        other: the same step for another batch size.
        statistics: ops through whose outputs examples may influence each other.
        reads: ops that read what all examples have determined together.
    """
    gradients = [graph.op_index[tensor.op.name] for tensor in graph.gradients.values()]
    ops = [graph.ops[index] for index in sorted(graph.closure(gradients))]
    for op in ops:
        twin = other.op_index.get(op.name)
        if twin is not None and _runs_along_examples(op, other.ops[twin]):
            return str(op.name)
    names = {op.name for op in ops}
    trace, other_trace = (
        traced_graph.read(each.recording.concrete.graph, with_sizes=True) for each in (graph, other)
    )
    trace = _compare_sizes(trace, other_trace, _num_examples(graph), _num_examples(other))
    examples = _Examples(trace.functions, statistics)
    examples.run(
        replace(trace.body, nodes=tuple(node for node in trace.body.nodes if node.name in names)),
        {
            **{
                name: _DEPENDS
                for name in graph.arguments
                if graph.is_per_example[graph.op_index[name]]
            },
            **dict.fromkeys(reads, _DEPENDS | _IS_WHOLE),
        },
    )
    return examples.found


def _num_examples(graph: StepGraph) -> int:
    """Returns the batch size for which a step was traced."""
    arguments = (graph.ops[graph.op_index[name]].outputs[0] for name in graph.arguments)
    return next((int(tensor.shape[0]) for tensor in arguments if tensor.shape.rank), 1)


def _runs_along_examples(op: Any, other: Any) -> bool:
    """Returns whether an op combines elements along the axis that grows with the batch."""
    is_window, is_last = op.type in _WINDOWS, op.type in _LAST_AXIS
    if not (is_window or is_last or op.type in _AXES_INPUT):
        return False
    shape, other_shape = op.inputs[0].shape, other.inputs[0].shape
    if not (shape.is_fully_defined() and other_shape.is_fully_defined()):
        return False
    pairs = zip(shape, other_shape, strict=True)
    growing = {axis for axis, (size, its) in enumerate(pairs) if size != its}
    if is_window:
        return bool(growing - {0})
    if is_last:
        return shape.rank - 1 in growing
    axes = tf.get_static_value(op.inputs[_AXES_INPUT[op.type]])
    return axes is not None and any(axis % shape.rank in growing for axis in np.ravel(axes))


class _Examples(Interpreter):
    """Labels the values that depend on examples.

    Attributes:
        found: name of the first op that relates examples to each other; None if there is none.
    """

    def __init__(self, functions: Mapping[str, Body], statistics: Collection[str]) -> None:
        super().__init__(functions)
        self.found: str | None = None
        self._statistics = statistics
        scopes = {name.rpartition("/")[0] for name in statistics} - {""}
        self._scopes = {f"gradient_tape/{scope}" for scope in scopes}  # of their gradients

    def decide(self, node: Node, predicate: int) -> int:
        """Returns no labels: all examples may determine how often a loop runs."""
        if predicate and node.op in BRANCHES:
            self._find(node)
        return 0

    def evaluate_opaque(self, node: Node, inputs: Sequence[int], condition: int) -> Value:
        return union(inputs) & _DEPENDS

    def evaluate(self, node: Node, frame: Frame) -> Value:
        inputs = frame.inputs(node)
        value = self.control_flow(node, inputs, frame.condition)
        if value is not None:
            return value
        labels = union(inputs)
        depends = labels & (_HAS_DATA_SIZE if node.op in _SHAPES else _DEPENDS)
        is_itself = node.op == "Equal" and len({*node.inputs}) == 1  # as in `tf.recompute_grad`
        if not depends or is_itself or node.op in _CONSTANTS:
            return 0
        is_statistic = node.name in self._statistics
        may_relate = is_statistic or node.name.rpartition("/")[0] in self._scopes
        if not may_relate and _relates_examples(node, inputs):
            self._find(node)
        found = [_label(node, i, labels) for i in range(len(node.sizes))]
        if is_statistic:
            found = [0 if label & _IS_WHOLE else label for label in found]
        return tuple(found) or _DEPENDS

    def _find(self, node: Node) -> None:
        self.found = self.found or node.name


def _label(node: Node, output: int, inputs: int) -> int:
    """Returns the label of an output that depends on examples."""
    size = node.sizes[output] if output < len(node.sizes) else _GROWS
    selects = node.op in _SELECTIONS or bool(inputs & _HAS_DATA_SIZE)
    is_whole = size >= 0 and _is_computed_with(node, output)
    has_data_size = size == _UNKNOWN and selects
    return _DEPENDS | is_whole * _IS_WHOLE | has_data_size * _HAS_DATA_SIZE


def _relates_examples(node: Node, inputs: Sequence[int]) -> bool:
    grown = {size for output, size in enumerate(node.sizes) if _is_computed_with(node, output)}
    are_whole = [bool(labels & _IS_WHOLE) for labels in inputs]
    if _HAS_PAIRS in grown or not any(are_whole):
        return _HAS_PAIRS in grown
    if node.op in _DIVISORS and are_whole[_DIVISORS[node.op]]:
        return True
    if node.op in _PRODUCTS and sum(are_whole) > 1:
        return True
    return _GROWS in grown


def _is_computed_with(node: Node, output: int) -> bool:
    """Returns whether gradients are computed with an output: integers are sizes and indices."""
    dtype = node.dtypes[output] if output < len(node.dtypes) else tf.variant
    return bool(dtype.is_floating or dtype.is_complex or dtype.is_bool)


def _compare_sizes(
    trace: TracedGraph, other: TracedGraph, batch: int, other_batch: int
) -> TracedGraph:
    """Returns the trace with `_GROWS` as the size of tensors that have another one in the other."""
    functions: dict[str, Body] = {}

    def compare_sizes(size: int, its: int) -> int:
        if size == its:
            return size
        is_known = min(size, its) > 0
        has_pairs = is_known and size * other_batch**2 == its * batch**2
        return _HAS_PAIRS if has_pairs else _GROWS

    def compare(body: Body, other_body: Body) -> Body:
        others = {node.name: node for node in other_body.nodes}
        nodes = []
        for node in body.nodes:
            twin = others.get(node.name, node)
            pairs = zip(node.functions, twin.functions, strict=False)
            for name, other_name in pairs:
                if name not in functions:
                    functions[name] = trace.functions[name]  # of a function that calls itself
                    functions[name] = compare(trace.functions[name], other.functions[other_name])
            sizes = map(compare_sizes, node.sizes, twin.sizes)
            nodes.append(replace(node, sizes=tuple(sizes)))
        return replace(body, nodes=tuple(nodes))

    body = compare(trace.body, other.body)
    return TracedGraph(body, {**trace.functions, **functions})
