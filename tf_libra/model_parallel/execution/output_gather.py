"""Assembly of the tensors that a step returns from their values by microbatch and replica."""

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.capture.batch_axes import BatchAxes
from tf_libra.model_parallel.partition.stage_partition import StagePartition


@dataclass(frozen=True)
class GatheredOutput:
    """Assembly of a returned tensor.

    Values with a batch axis are concatenated. Other floating-point values are averaged, and other
    integers are added.

    Attributes:
        axis: batch axis; None if the tensor has none.
        is_running_total: whether microbatches accumulate it in a variable; the last value counts.
        is_replicated: whether all replicas have the same value.
        is_floating: whether its dtype is a floating-point type.
        local_shape: its shape in a replica's trace.
        num_examples: number of examples of this trace; 1 without a batch axis.
    """

    axis: int | None
    is_running_total: bool
    is_replicated: bool
    is_floating: bool
    local_shape: tuple[int, ...]
    num_examples: int

    @classmethod
    def from_tensor(
        cls, partition: StagePartition, axes: BatchAxes, tensor: Any
    ) -> "GatheredOutput":
        """Returns the assembly of a tensor that the step returns.

        Raises:
            ValueError: its values cannot be combined.
        """
        graph = partition.graph
        name = graph.recording.name
        axis = axes.batch_axis(tensor.name)
        if not tensor.shape.is_fully_defined():
            raise ValueError(
                f"{name}: values of the result {tensor.name} cannot be combined over microbatches:"
                f" its shape {tensor.shape} is not static"
            )
        is_number = tensor.dtype.is_floating or tensor.dtype.is_integer
        is_running_total = graph.is_running_total(tensor)
        if axis is None and not is_number and not is_running_total:
            raise ValueError(
                f"{name}: values of the result {tensor.name} cannot be combined over microbatches:"
                f" its dtype is {tensor.dtype.name}; return a number instead"
            )
        return cls(
            axis,
            is_running_total,
            not graph.is_per_example[graph.op_index[tensor.op.name]],
            bool(tensor.dtype.is_floating),
            tuple(tensor.shape.as_list()),
            1 if axis is None else axes.batch_size,
        )

    def shape(self, num_examples: int) -> tuple[int, ...]:
        """Returns its shape for a number of examples."""
        if self.axis is None:
            return self.local_shape
        per_example = self.local_shape[self.axis] // self.num_examples
        return resize_axis(self.local_shape, self.axis, per_example * num_examples)

    def combine_microbatches(self, values: list[Any]) -> Any:
        """Returns the combination of a replica's values of all microbatches."""
        if self.axis is not None:
            return tf.concat(values, self.axis)
        if self.is_running_total:
            return values[-1]
        return self._reduce(values)

    def combine_replicas(self, values: list[Any], num_microbatches: int) -> Any:
        """Returns the combination of all replicas' values."""
        if len(values) == 1 or self.is_replicated:
            return values[0]
        if self.axis is not None:  # each microbatch contains examples of all replicas
            split = [tf.split(value, num_microbatches, self.axis) for value in values]
            parts = [part for microbatch in zip(*split, strict=True) for part in microbatch]
            return tf.concat(parts, self.axis)
        return self._reduce(values)

    def _reduce(self, values: list[Any]) -> Any:
        total = functools.reduce(operator.add, values)
        return total / tf.cast(len(values), total.dtype) if self.is_floating else total


def resize_axis(shape: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    """Returns a shape with another size along one axis."""
    return tuple(size if index == axis else value for index, value in enumerate(shape))
