"""Reduction of a stage's gradients: accumulation, all-reduce among replicas, and average."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.partition.deferred_gradients import (
    DeferredGradient,
    deferred_tensors,
    without_deferred,
)
from tf_libra.model_parallel.partition.stage_partition import StagePartition

Groups = tuple[tuple[str, ...], ...]
"""Names of reductions by fused group, in the order in which gradients are produced."""

# Tensors of at least this size are not fused: the copy would take longer than one more all-reduce.
_MAX_FUSED_BYTES = 1 << 20


def fused_all_reduce(
    tensors: Mapping[str, Any], ranks: Sequence[int], transport: Transport, name: str
) -> dict[str, Any]:
    """Returns the sums of tensors over ranks; small tensors share one all-reduce per dtype.

    Args:
        tensors: tensors of static shapes.
        ranks: ranks that call this, for the same tensors in the same order.
        transport: transport between them.
        name: unique name among the concurrent all-reduces between the same ranks.
    """
    sums: dict[str, Any] = {}
    for index, (key, tensor) in enumerate(tensors.items()):
        if tensor.shape.num_elements() * tensor.dtype.size >= _MAX_FUSED_BYTES:
            sums[key] = transport.all_reduce(tensor, ranks, f"gradients {name}: {index}")
    small = {key: tensor for key, tensor in tensors.items() if key not in sums}
    for dtype in dict.fromkeys(tensor.dtype for tensor in small.values()):
        fused = {key: tensor for key, tensor in small.items() if tensor.dtype == dtype}
        buffer = tf.concat([tf.reshape(tensor, [-1]) for tensor in fused.values()], 0)
        total = transport.all_reduce(buffer, ranks, f"gradients {name}: {dtype.name}")
        parts = tf.split(total, [tensor.shape.num_elements() for tensor in fused.values()])
        for (key, tensor), part in zip(fused.items(), parts, strict=True):
            sums[key] = tf.reshape(part, tensor.shape)
    return sums


@dataclass(frozen=True)
class GradientReduction:
    """Epilogue of a stage's backward computation of a microbatch, which reduces its gradients.

    It adds gradients to the sums over earlier microbatches, all-reduces the sums group by group,
    and averages them. It runs in the function that computes the gradients, in which TensorFlow
    adds in place. Tensors for other stages are sent as soon as they are computed, before any
    all-reduce has ended.

    Attributes:
        names: names of the stage's reductions, in the order of the sums among inputs and outputs.
        gradient_index: by reduction, index of its gradient among the computed tensors.
        plain_outputs: indices of computed tensors that are returned, not only summed gradients.
        variables: by reduction, the variable of its gradient.
        label: part of the names of its all-reduces, unique between the same ranks.
        accumulates: whether it takes the sums over earlier microbatches.
        divisor: divisor of the final sums; 1 before the last microbatch.
        groups: groups of reductions to all-reduce; other gradients stay local sums.
        ranks: the stage's replicas, if there are groups.
        transport: transport between the replicas, if there are groups.
        send: sends the computed tensors that other stages need; None if the caller does.
    """

    names: tuple[str, ...]
    gradient_index: Mapping[str, int]
    plain_outputs: tuple[int, ...]
    variables: Mapping[str, Any]
    label: str
    accumulates: bool = False
    divisor: int = 1
    groups: Groups = ()
    ranks: tuple[int, ...] = ()
    transport: Transport | None = None
    send: Callable[[list[Any]], None] | None = None

    @classmethod
    def for_stage(
        cls,
        partition: StagePartition,
        stage: int,
        used_tensors: Collection[str],
        deferred: Sequence[DeferredGradient] = (),
    ) -> "GradientReduction":
        """Returns the reduction for the first of several microbatches.

        Args:
            partition: the step in stages.
            stage: index of the stage.
            used_tensors: names of the computed tensors that are needed besides their sums.
            deferred: gradients that it leaves out.
        """
        graph = partition.graph
        left_out = {each.reduction for each in deferred}
        gradients = {
            name: graph.gradients[name].name
            for name in partition.reductions[stage]
            if name not in left_out
        }
        subgraph = partition.subgraphs[partition.backward_phase(stage)]
        outputs = without_deferred(subgraph, deferred).outputs
        used_tensors = {*used_tensors, *deferred_tensors(deferred)}
        only_summed = set(gradients.values()) - set(used_tensors)
        return cls(
            tuple(gradients),
            {name: outputs.index(gradient) for name, gradient in gradients.items()},
            tuple(index for index, name in enumerate(outputs) if name not in only_summed),
            {name: graph.recording.variables[name] for name in partition.reductions[stage]},
            f"of stage {stage}",
        )

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of its additional inputs: the sums over earlier microbatches."""
        return self.names if self.accumulates else ()

    @property
    def specs(self) -> list[Any]:
        """The specs of the sums over earlier microbatches."""
        return [_spec(self.variables[name]) for name in self.inputs]

    @property
    def exchanges(self) -> bool:
        """True if it exchanges tensors with other ranks."""
        return bool(self.groups)

    def __call__(self, outputs: list[Any], inputs: Sequence[Any]) -> list[Any]:
        """Returns the kept tensors, followed by the sums or, in the last microbatch, averages."""
        # The static shape of a gradient may be unknown.
        sums = {
            name: tf.ensure_shape(outputs[self.gradient_index[name]], self.variables[name].shape)
            for name in self.names
        }
        if self.accumulates:
            sums = {name: sums[name] + before for name, before in zip(sums, inputs, strict=True)}
        sums = self.finish(sums)
        # Sends are traced last: TensorFlow starts ops with effects in the order of the trace, and
        # the sent tensors are among the last that are computed.
        if self.send is not None:
            self.send(outputs)
        return [
            *(outputs[index] for index in self.plain_outputs),
            *(sums[name] for name in self.names),
        ]

    def finish(self, sums: dict[str, Any]) -> dict[str, Any]:
        """Returns the sums, all-reduced group by group and divided."""
        for index, group in enumerate(self.groups):
            assert self.transport is not None
            tensors = {name: sums[name] for name in group}
            label = f"{self.label}, group {index}"
            sums |= fused_all_reduce(tensors, self.ranks, self.transport, label)
        if self.divisor != 1:
            sums = {
                name: total / tf.cast(self.divisor, total.dtype) for name, total in sums.items()
            }
        return sums


@dataclass(frozen=True)
class DeferredReduction:
    """Epilogue without a computation before it: deferred gradients, and the reduction of all.

    Attributes:
        reduction: the final reduction of the stage's gradients, of which it takes the sums.
        names: names of all reductions of the stage, in the order of its outputs.
        deferred: the deferred gradients.
        tensors: their tensors, symbolic ones of the trace, by name.
        microbatches: indices of the microbatches.
    """

    reduction: GradientReduction
    names: tuple[str, ...]
    deferred: tuple[DeferredGradient, ...]
    tensors: Mapping[str, Any]
    microbatches: tuple[int, ...]

    plain_outputs = ()

    @classmethod
    def for_partition(
        cls,
        partition: StagePartition,
        reduction: GradientReduction,
        names: Sequence[str],
        deferred: tuple[DeferredGradient, ...],
        microbatches: Sequence[int],
    ) -> "DeferredReduction":
        """Returns the epilogue for gradients of a partition; see the attributes."""
        tensors = {name: partition.tensor(name) for name in deferred_tensors(deferred)}
        return cls(reduction, tuple(names), deferred, tensors, tuple(microbatches))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of its inputs: sums over all microbatches, and tensors of each; `tensor_key`."""
        keys = (tensor_key(name, m) for name in self.tensors for m in self.microbatches)
        return (*self.reduction.names, *keys)

    @property
    def specs(self) -> list[Any]:
        """The specs of its inputs."""
        sums = [_spec(self.reduction.variables[name]) for name in self.reduction.names]
        return sums + [_spec(tensor) for tensor in self.tensors.values() for _ in self.microbatches]

    @property
    def exchanges(self) -> bool:
        """True if it exchanges tensors with other ranks."""
        return self.reduction.exchanges

    def __call__(self, outputs: list[Any], inputs: Sequence[Any]) -> list[Any]:
        """Returns the averages of all gradients."""
        values = dict(zip(self.inputs, inputs, strict=True))
        sums = {name: values[name] for name in self.reduction.names}
        previous: list[Any] = []  # one after the other, because each concatenation takes memory
        for each in self.deferred:
            first, second = (
                [values[tensor_key(name, m)] for m in self.microbatches] for name in each.tensors
            )
            shape = self.reduction.variables[each.reduction].shape
            with tf.control_dependencies(previous):
                sums[each.reduction] = each(first, second, shape)
            previous = [sums[each.reduction]]
        sums = self.reduction.finish(sums)
        return [sums[name] for name in self.names]


def tensor_key(tensor: str, microbatch: int) -> str:
    """Returns the name of a microbatch's tensor that is stored for a deferred gradient."""
    return f"{tensor} of microbatch {microbatch}"


def _spec(tensor: Any) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)
