"""Differences between a step of the joint batch and steps of all ranks' own batches.

Averaged gradients are the same if the loss is a mean over examples. Values that a step computes
from all of its examples at a time, draws, and effects outside of variables are not.
"""

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.internal import tf_internal
from tf_libra.model_parallel.capture.example_statistics import (
    find_draws,
    find_influenced,
    find_loss_statistics,
    find_seeds,
    find_statistics,
    statistics_writes,
)
from tf_libra.model_parallel.capture.related_examples import find_relation
from tf_libra.model_parallel.capture.step_dataflow import RANDOM
from tf_libra.model_parallel.capture.step_graph import StepGraph
from tf_libra.model_parallel.capture.traced_ops import CHECKS
from tf_libra.planning.allowed_differences import (
    BATCH_STATISTICS,
    HOST_EFFECTS,
    RANDOM_DRAWS,
    describe_allowing,
)

_HARMLESS_EFFECTS = CHECKS | {"Empty", "NoOp"}
_HOST_OPS = ("PyFunc", "EagerPyFunc")
# Ops that print, write files or change resources other than variables. Undoing a step does not undo
# them.
_CHANGES = re.compile(
    r"LookupTable(Insert|Import|Remove)|InitializeTable|Write\w*Summary|Queue(Enqueue|Dequeue|Close)"
    r"|Iterator\w*GetNext|ReaderRead|Accumulator(Apply|Take)Gradient|Barrier(InsertMany|TakeMany|Close)"
    r"|^(OrderedMap|Map)?(Stage|Unstage|UnstageNoKey|Clear)$|^StageClear$"
    r"|^Print(V2)?$|^WriteFile$|^Save(V2|Slices)?$|^MergeV2Checkpoints$|^ImportEvent$"
)


@dataclass(frozen=True)
class JointDifferences:
    """Differences of a step that one rank computes for all from steps of all ranks.

    Attributes:
        reason: what the user does not allow, in a clause; None if nothing.
        variables: placeholders of the variables that differ for a reason that the user allows.
        results: numbers of such results.
    """

    reason: str | None
    variables: frozenset[str] = frozenset()
    results: frozenset[int] = frozenset()


def find_differences(
    graph: StepGraph, other: StepGraph, allow: Container[str] = ()
) -> JointDifferences:
    """Returns what one rank would compute otherwise than all ranks.

    Metrics are left out: they have no influence on weights.

    Args:
        graph: the step.
        other: the same step for another batch size.
        allow: differences that the user allows, by name. Effects change no value.
    """
    found = [
        (BATCH_STATISTICS, _describe_statistics(graph)),
        (HOST_EFFECTS, _describe_effects(graph)),
        (RANDOM_DRAWS, _describe_draws(graph)),
    ]
    for name, reason in found:
        if reason and name not in allow:
            return JointDifferences(f"{reason}; {describe_allowing(name)}")
    for name, gradient in graph.gradients.items():
        if graph.recording.has_rows and not gradient.shape.is_fully_defined():
            return JointDifferences(
                f"the number of rows of the gradient {name!r} depends on values, so that rows of an"
                " id may be one row in the joint batch, and several in those of ranks"
            )
    statistics = find_statistics(graph, other) if BATCH_STATISTICS in allow else frozenset()
    related = _find_relation(graph, other, statistics)
    if related is not None:
        return JointDifferences(
            f"gradients are no mean over examples, since {related!r} takes what all examples of a"
            " batch determine together, such as their number behind a mask, or the root of their"
            " mean"
        )
    draws = find_draws(graph) if RANDOM_DRAWS in allow else frozenset()
    if not statistics | draws:
        return JointDifferences(None)
    variables, results = find_influenced(graph, statistics | draws)
    return JointDifferences(None, variables | find_seeds(graph, draws), results)


def _find_relation(graph: StepGraph, other: StepGraph, statistics: frozenset[int]) -> str | None:
    """Returns the first op that relates examples otherwise than by statistics that layers take."""
    names, of_losses = [op.name for op in graph.ops], frozenset[int]()
    if statistics:
        of_losses = find_loss_statistics(graph, other, statistics)
    allowed = {names[index] for index in statistics - of_losses}
    return find_relation(graph, other, allowed, {names[index] for index in of_losses - statistics})


def _describe_statistics(graph: StepGraph) -> str:
    for _, name in statistics_writes(graph):
        variable = graph.variable_name(name)
        return f"batch statistics, such as {variable!r}, would be those of other examples"
    return ""


def _describe_effects(graph: StepGraph) -> str:
    trace = traced_graph.read(graph.recording.concrete.graph)
    functions = {node.name: node.functions for node in trace.body.nodes}
    for index in sorted({*graph.microbatch_effects, *graph.update_effects}):
        op = graph.ops[index]
        kinds = [op.type]
        if functions[op.name]:
            called = trace.nodes_within(functions[op.name])
            kinds = [node.op for node in called if not node.functions]
        if not graph.handles[index] and any(map(_has_effect, kinds)):
            return f"{op.name!r} has an effect outside of variables, which only one rank would have"
    for name, kind in _nodes(graph):
        if kind in _HOST_OPS:
            return f"{name!r} calls Python, which only one rank would call"
        if _CHANGES.search(kind):
            return f"{name!r} has an effect outside of variables, which only one rank would have"
    return ""


def _has_effect(kind: str) -> bool:
    """Returns whether an op without variables has an effect; draws have their own reason."""
    definition = tf_internal.find_op_definition(kind)
    is_stateful = definition is None or definition.is_stateful
    return is_stateful and kind not in _HARMLESS_EFFECTS and not RANDOM.search(kind)


def _describe_draws(graph: StepGraph) -> str:
    for name, kind in _nodes(graph):
        if RANDOM.search(kind):
            return f"{name!r} draws random numbers, which would be those of the joint batch"
    return ""


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


def _nodes(graph: StepGraph) -> list[tuple[str, str]]:
    inner = [(node.name, node.op) for node in _function_nodes(graph)]
    return [*((op.name, op.type) for op in graph.ops), *inner]


def _function_nodes(graph: StepGraph) -> list[Any]:
    definition: Any = graph.recording.concrete.graph.as_graph_def()
    return [node for function in definition.library.function for node in function.node_def]
