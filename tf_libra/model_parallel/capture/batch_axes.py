"""Along which axis of a tensor samples lie, found by tracing a step for two sizes of a batch."""

import hashlib
from collections.abc import Collection, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np

from tf_libra.internal import tf_internal
from tf_libra.model_parallel.capture.step_graph import StepGraph
from tf_libra.model_parallel.capture.step_recorder import REDUCTION


class BatchAxes:
    """The axes of samples in a trace."""

    def __init__(self, graph: StepGraph, size: int, other: StepGraph, other_size: int) -> None:
        """Compares two traces.

        Args:
            graph: the step for batches of `size` samples.
            size: how many.
            other: the step for batches of another size.
            other_size: which.

        Raises:
            ValueError: the step computes something else for another size.
        """
        check_same(graph, size, other, other_size)
        self._graph = graph.recording.concrete.graph
        self._other = other.recording.concrete.graph
        self._sizes = (size, other_size)
        self._name = graph.recording.name

    @property
    def num_samples(self) -> int:
        """The number of samples of the first trace."""
        return self._sizes[0]

    def of(self, name: str) -> int | None:
        """The axis along which a tensor grows with the batch; None: it does not.

        Raises:
            ValueError: it grows otherwise than by so much for each sample.
        """
        one = self._graph.get_tensor_by_name(name).shape
        other = self._other.get_tensor_by_name(name).shape
        size, other_size = self._sizes
        if one.rank is None or other.rank is None:
            raise ValueError(f"{self._name}: the shape of {name} is known only in a step")
        grows = [axis for axis in range(one.rank) if one[axis] != other[axis]]
        if not grows:
            return None
        axis = grows[0]
        known = one[axis] is not None and other[axis] is not None
        if len(grows) > 1 or not known or one[axis] * other_size != other[axis] * size:
            raise ValueError(
                f"{self._name}: {name} has the shape {one} for {size} samples and {other} for"
                f" {other_size}, and cannot be divided into samples"
            )
        return axis


def check_same(graph: StepGraph, size: int, other: StepGraph, other_size: int) -> None:
    """Raises `ValueError` where the step computes something else for another size of its batch."""
    ops, others = _compared(graph), _compared(other)
    for one, another in zip_longest(ops, others):
        if one is None or another is None or _kind(one) != _kind(another):
            names = ["nothing" if op is None else op.name for op in (one, another)]
            raise ValueError(
                f"{graph.recording.name} computes {names[0]} for a batch of {size} samples where it"
                f" computes {names[1]} for one of {other_size}: stages need the same"
                " computation for both"
            )


def check_counts(graph: StepGraph, other: StepGraph) -> None:
    """Raises `ValueError` if the update counts samples by the size of the batch.

    In a trace, the size of the batch is the size of a microbatch. That size is correct if gradients
    are divided by it, for example if the loss is a sum. The same error is raised if the step
    returns a tensor that is computed from the size of the batch and not from samples.

    Args:
        graph: the step.
        other: the same step for a batch of another size.
    """
    others = {op.name: op for op in other.ops}
    for write in graph.once:
        if graph.handles[write] and _is_of_size(graph, graph.closure([write]), others):
            name = graph.variable_name(graph.handles[write][0])
            raise ValueError(
                f"{graph.recording.name}: {name!r} is updated by the size of the batch, which in a"
                " stage is that of a microbatch: count samples outside of the step, or steps"
            )
    samples = {one.name for one in graph.returned_samples}
    for one, another in zip(graph.returned, other.returned, strict=True):
        if one.name in samples:
            continue
        place = graph.place[one.op.name]
        if (
            _differ(one, another)
            if graph.constant[place]
            else _is_of_size(graph, graph.closure([place]), others)
        ):
            raise ValueError(
                f"{graph.recording.name} returns {one.name}, which is made of the size of the"
                " batch, and in a stage that is the size of a microbatch: count samples outside of"
                " the step"
            )


def _is_of_size(graph: StepGraph, places: Collection[int], others: Mapping[str, Any]) -> bool:
    """Returns whether ops that take no average take constants that change with the batch size."""
    if any(graph.ops[place].type == REDUCTION for place in places):
        return False
    return any(
        graph.constant[graph.place[one.op.name]]
        and _differ(one, others[graph.ops[place].name].inputs[index])
        for place in places
        if not graph.constant[place]
        for index, one in enumerate(graph.ops[place].inputs)
    )


def _differ(one: Any, other: Any) -> bool:
    """Returns whether two tensors that are computed from constants have different values."""
    values = [tf_internal.smart_constant_value(tensor) for tensor in (one, other)]
    return not any(value is None for value in values) and not np.array_equal(*values)


def _compared(graph: StepGraph) -> list[Any]:
    """All ops but constants, which TensorFlow writes in one way or another, by their size."""
    return [op for op, constant in zip(graph.ops, graph.constant, strict=True) if not constant]


def _kind(op: Any) -> tuple[Any, ...]:
    return op.name, op.type, [one.name for one in op.inputs]


def digest(graph: StepGraph) -> str:
    """A digest of what a step computes, the same for batches of all sizes."""
    found = hashlib.blake2b(digest_size=16)
    for op in _compared(graph):
        found.update(repr(_kind(op)).encode())
    return found.hexdigest()
