"""Batch axis of each tensor, found by comparing traces of a step for two batch sizes."""

import hashlib
from collections.abc import Collection, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np

from tf_libra.internal import tf_internal
from tf_libra.model_parallel.capture.recorded_step import REDUCTION
from tf_libra.model_parallel.capture.step_graph import StepGraph


class BatchAxes:
    """Batch axes of the tensors of a trace."""

    def __init__(self, graph: StepGraph, size: int, other: StepGraph, other_size: int) -> None:
        """Compares two traces.

        Args:
            graph: the step, traced for a batch of `size` examples.
            size: batch size of `graph`.
            other: the step, traced for another batch size.
            other_size: batch size of `other`.

        Raises:
            ValueError: the two traces compute different things.
        """
        check_same_computation(graph, size, other, other_size)
        self._graph = graph.recording.concrete.graph
        self._other = other.recording.concrete.graph
        self._sizes = (size, other_size)
        self._name = graph.recording.name

    @property
    def batch_size(self) -> int:
        """The batch size of the first trace."""
        return self._sizes[0]

    def batch_axis(self, tensor: str) -> int | None:
        """Returns the axis along which a tensor grows with the batch; None if its shape is fixed.

        Args:
            tensor: name of the tensor in the trace.

        Raises:
            ValueError: the tensor does not grow in proportion to the batch size.
        """
        shape = self._graph.get_tensor_by_name(tensor).shape
        other_shape = self._other.get_tensor_by_name(tensor).shape
        size, other_size = self._sizes
        if shape.rank is None or other_shape.rank is None:
            raise ValueError(f"{self._name}: {tensor} has no static rank")
        growing = [axis for axis in range(shape.rank) if shape[axis] != other_shape[axis]]
        if not growing:
            return None
        axis = growing[0]
        is_known = shape[axis] is not None and other_shape[axis] is not None
        if len(growing) > 1 or not is_known or shape[axis] * other_size != other_shape[axis] * size:
            raise ValueError(
                f"{self._name}: {tensor} cannot be divided into examples: its shape is {shape} for"
                f" {size} examples and {other_shape} for {other_size}"
            )
        return axis


def check_same_computation(graph: StepGraph, size: int, other: StepGraph, other_size: int) -> None:
    """Raises `ValueError` if the step computes something else for another batch size."""
    for op, other_op in zip_longest(_comparable_ops(graph), _comparable_ops(other)):
        if op is None or other_op is None or _op_signature(op) != _op_signature(other_op):
            names = ["nothing" if each is None else each.name for each in (op, other_op)]
            raise ValueError(
                f"{graph.recording.name} computes {names[0]} for a batch of {size} examples, but"
                f" {names[1]} for {other_size}; stages need the same ops for every batch size"
            )


def check_batch_size_use(graph: StepGraph, other: StepGraph) -> None:
    """Raises `ValueError` if the update counts examples by the batch size.

    In a trace, the batch size is the size of a microbatch. That size is correct if gradients
    are divided by it, for example if the loss is a sum. The same error is raised if the step
    returns a tensor that is computed from the batch size and not from examples.

    Args:
        graph: the step.
        other: the same step for another batch size.
    """
    other_ops = {op.name: op for op in other.ops}
    for write in graph.update_effects:
        handles = graph.handles[write]
        if handles and _depends_on_batch_size(graph, graph.closure([write]), other_ops):
            raise ValueError(
                f"{graph.recording.name}: the update of {graph.variable_name(handles[0])!r} depends"
                " on the batch size, which in a stage is the microbatch size; count steps, or count"
                " examples outside of the step"
            )
    per_example = {tensor.name for tensor in graph.microbatch_outputs}
    for tensor, other_tensor in zip(graph.outputs, other.outputs, strict=True):
        if tensor.name in per_example:
            continue
        index = graph.op_index[tensor.op.name]
        if (
            _differ(tensor, other_tensor)
            if graph.is_constant[index]
            else _depends_on_batch_size(graph, graph.closure([index]), other_ops)
        ):
            raise ValueError(
                f"{graph.recording.name}: the result {tensor.name} depends on the batch size, which"
                " in a stage is the microbatch size; count examples outside of the step"
            )


def _depends_on_batch_size(
    graph: StepGraph, indices: Collection[int], other_ops: Mapping[str, Any]
) -> bool:
    """Returns whether ops, none of them a reduction, take constants that vary with batch size."""
    if any(graph.ops[index].type == REDUCTION for index in indices):
        return False
    return any(
        graph.is_constant[graph.op_index[value.op.name]]
        and _differ(value, other_ops[graph.ops[index].name].inputs[number])
        for index in indices
        if not graph.is_constant[index]
        for number, value in enumerate(graph.ops[index].inputs)
    )


def _differ(tensor: Any, other: Any) -> bool:
    """Returns whether two tensors that are computed from constants have different values."""
    values = [tf_internal.smart_constant_value(each) for each in (tensor, other)]
    return not any(value is None for value in values) and not np.array_equal(*values)


def _comparable_ops(graph: StepGraph) -> list[Any]:
    """Returns all ops but constants: TensorFlow chooses their form by their size."""
    return [
        op for op, is_constant in zip(graph.ops, graph.is_constant, strict=True) if not is_constant
    ]


def _op_signature(op: Any) -> tuple[Any, ...]:
    return op.name, op.type, [value.name for value in op.inputs]


def computation_digest(graph: StepGraph) -> str:
    """Returns a digest of the step's computation, the same for all batch sizes."""
    digest = hashlib.blake2b(digest_size=16)
    for op in _comparable_ops(graph):
        digest.update(repr(_op_signature(op)).encode())
    return digest.hexdigest()
