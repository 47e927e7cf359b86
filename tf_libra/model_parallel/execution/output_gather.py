"""Assembly of the tensors that a step returns from their values for microbatches."""

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
    """The assembly of a returned tensor from its values for microbatches.

    Attributes:
        axis: along which samples lie; None: it is one value for all of them.
        is_running: whether a variable has it that every microbatch writes: the last counts.
        is_same: whether all replicas have the same.
        is_floating: then values are averaged, else added up.
        static: its shape for a replica's samples.
        size: how many those are.
    """

    axis: int | None
    is_running: bool
    is_same: bool
    is_floating: bool
    static: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, cut: StagePartition, axes: BatchAxes, tensor: Any) -> "GatheredOutput":
        """Returns the assembly of a tensor that the step returns.

        Raises:
            ValueError: it cannot be put together from microbatches.
        """
        name = cut.graph.recording.name
        axis = axes.batch_axis(tensor.name)
        if not tensor.shape.is_fully_defined():
            raise ValueError(
                f"{name} returns {tensor.name}, whose shape, {tensor.shape}, is known only in a"
                " step: it cannot be put together from microbatches"
            )
        number = tensor.dtype.is_floating or tensor.dtype.is_integer
        is_running = cut.graph.is_running_total(tensor)
        if axis is None and not number and not is_running:
            raise ValueError(
                f"{name} returns {tensor.name}, a {tensor.dtype.name} that depends on samples, and"
                " those of microbatches cannot be put together: return a number"
            )
        return cls(
            axis,
            is_running,
            not cut.graph.is_per_example[cut.graph.op_index[tensor.op.name]],
            bool(tensor.dtype.is_floating),
            tuple(tensor.shape.as_list()),
            1 if axis is None else axes.batch_size,
        )

    def shape(self, samples: int) -> tuple[int, ...]:
        """Its shape for so many samples."""
        if self.axis is None:
            return self.static
        return resized(self.static, self.axis, self.static[self.axis] // self.size * samples)

    def joined(self, values: list[Any]) -> Any:
        """Joins the values of all microbatches of a replica."""
        if self.axis is not None:
            return tf.concat(values, self.axis)
        if self.is_running:
            return values[-1]
        return self._added_up(values)

    def of_replicas(self, parts: list[Any], num_microbatches: int) -> Any:
        """Joins the values of all replicas."""
        if len(parts) == 1 or self.is_same:
            return parts[0]
        if self.axis is not None:  # microbatch by microbatch
            split = [tf.split(part, num_microbatches, self.axis) for part in parts]
            return tf.concat([one for row in zip(*split, strict=True) for one in row], self.axis)
        return self._added_up(parts)

    def _added_up(self, values: list[Any]) -> Any:
        total = functools.reduce(operator.add, values)
        return total / tf.cast(len(values), total.dtype) if self.is_floating else total


def resized(shape: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    """A shape with another size along one axis."""
    return tuple(size if index == axis else value for index, value in enumerate(shape))
