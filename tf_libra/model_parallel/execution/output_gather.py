"""Assembly of the tensors that a step returns from their values by microbatch and replica."""

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.capture.batch_axes import BatchAxes
from tf_libra.model_parallel.execution.metrics import Metric, accumulated_variables
from tf_libra.model_parallel.execution.transport import (
    Transport,
    broadcast_tensor,
    scatter_tensor,
)
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.sized_traces import SizedPartition
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
        if self.is_replicated and not self.is_floating:
            return values[0]
        total = functools.reduce(operator.add, values)
        return total / tf.cast(len(values), total.dtype) if self.is_floating else total


class OutputGather:
    """Gathers the results of microbatches in every step, on one rank.

    Attributes:
        names: names of the tensors that the step returns and every microbatch computes.
        averaged_metrics: by returned tensor, the variables of metrics that it depends on together
            with other values. Its values are averaged over replicas.
    """

    def __init__(
        self,
        layout: Layout,
        sized: SizedPartition,
        num_examples: int,
        transport: Transport,
        returns_own: bool = False,
    ) -> None:
        """Plans the assembly of all outputs.

        Args:
            layout: the replicas of each stage.
            sized: the step in the layout's stages, traced for any batch size.
            num_examples: number of examples of the joint batch.
            transport: transport to the other ranks.
            returns_own: whether a rank gets results of its own examples alone, if they have a batch
                axis.

        Raises:
            ValueError: values of an output cannot be combined.
        """
        self._layout = layout
        self._partition = partition = sized.partition
        self._num_examples = num_examples
        self._transport = transport
        self._returns_own = returns_own
        tensors = {tensor.name: tensor for tensor in partition.graph.microbatch_outputs}
        self.names = tuple(tensors)
        self._outputs = {
            name: GatheredOutput.from_tensor(partition, sized.axes, tensor)
            for name, tensor in tensors.items()
        }
        replica_totals = [
            name
            for name, output in self._outputs.items()
            if output.is_running_total
            and not output.is_replicated
            and len(self._ranks_of_output(name)) > 1
        ]
        self._metrics = {
            name: metric
            for name in replica_totals
            if (metric := Metric.from_tensor(partition, sized.extractor, tensors[name])) is not None
        }
        self.averaged_metrics = {
            name: accumulated_variables(partition.graph, tensors[name])
            for name in replica_totals
            if self._outputs[name].is_floating and name not in self._metrics
        }

    def gather(self, outputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns the step's results for the joint batch, or parts of them, on every rank.

        Args:
            outputs: by microbatch, the results that this rank has computed.
        """
        results: dict[str, Any] = {}
        for name, output in self._outputs.items():
            root, num_ranks = self._ranks_of_output(name)[0], self._layout.num_ranks
            combined, dtype = self._combine(name, outputs), self._partition.tensor(name).dtype
            if self._returns_own and output.axis is not None:
                spec = tf.TensorSpec(output.shape(self._num_examples // num_ranks), dtype)
                results[name] = scatter_tensor(
                    self._transport, combined, root, num_ranks, spec, output.axis, name
                )
                continue
            shape = output.shape(self._num_examples)
            results[name] = broadcast_tensor(
                self._transport, combined, root, num_ranks, dtype, shape, name
            )
        return results

    def _combine(self, name: str, outputs: Sequence[Mapping[str, Any]]) -> Any:
        """Returns a result on the first rank that computes it; None on other ranks."""
        ranks, own = self._ranks_of_output(name), self._transport.rank
        if own not in ranks:
            return None
        if name in self._metrics:
            return self._metrics[name].compute_over_replicas(ranks, self._transport)
        output = self._outputs[name]
        part = output.combine_microbatches([values[name] for values in outputs])
        message = f"returned {name}"
        if own != ranks[0]:
            self._transport.send(part, ranks[0], message)
            return None
        parts = [part]
        parts += [
            self._transport.receive(part.dtype, part.shape, rank, message) for rank in ranks[1:]
        ]
        return output.combine_replicas(parts, len(outputs))

    def _ranks_of_output(self, name: str) -> tuple[int, ...]:
        """Returns the ranks that compute an output."""
        phase = self._partition.phase_of_tensor(self._partition.tensor(name))
        return self._layout.ranks[self._partition.stage_of_phase(phase)]


def resize_axis(shape: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    """Returns a shape with another size along one axis."""
    return tuple(size if index == axis else value for index, value in enumerate(shape))
