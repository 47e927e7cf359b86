"""Gradients that a stage computes once per step, from tensors of all microbatches.

The gradient of a weight often contracts two tensors over examples, such as the inputs of a layer
and the gradients of its outputs. The sum over microbatches is the contraction of both tensors,
concatenated over microbatches. Large gradients are then written once, and not once per microbatch.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from tf_libra.model_parallel.capture.recorded_step import REDUCTION
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.partition.subgraph import Subgraph

# Ops of one input that change no element, between a contraction and the gradient.
_UNCHANGING = frozenset({"Identity", "Reshape"})


class _Contraction(NamedTuple):
    """Op that is linear in each of two tensors and sums over an axis of both.

    Attributes:
        tensors: the two tensors.
        axes: by tensor, the axis along which microbatches can be concatenated.
        compute: computes it for other tensors.
    """

    tensors: tuple[Any, Any]
    axes: tuple[int, int]
    compute: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class DeferredGradient:
    """Gradient that contracts two tensors of every microbatch.

    Attributes:
        reduction: name of the gradient's reduction.
        gradient: name of the gradient.
        ops: names of the ops from the contraction to the gradient.
        tensors: names of the two tensors.
        axes: by tensor, the axis along which microbatches are concatenated.
        compute: returns the contraction of the concatenated tensors.
    """

    reduction: str
    gradient: str
    ops: tuple[str, ...]
    tensors: tuple[str, str]
    axes: tuple[int, int]
    compute: Callable[[Any, Any], Any]

    def __call__(self, first: Sequence[Any], second: Sequence[Any], shape: Any) -> Any:
        """Returns the sum over microbatches of the gradient.

        Args:
            first: the first tensor of every microbatch.
            second: the second tensor of every microbatch.
            shape: shape of the gradient.
        """
        both = (
            tf.concat(tensors, axis) if len(tensors) > 1 else tensors[0]
            for tensors, axis in zip((first, second), self.axes, strict=True)
        )
        return tf.reshape(self.compute(*both), shape)


def find_deferred_gradients(
    partition: StagePartition, stage: int, num_batches: int
) -> tuple[DeferredGradient, ...]:
    """Returns the gradients of a stage for which one computation per step pays.

    Their tensors, of all microbatches, have at most as many bytes as the gradient, whose sum over
    microbatches they replace in memory. So a stage writes fewer bytes than if it added gradients to
    sums.

    Args:
        partition: the step in stages.
        stage: index of the stage.
        num_batches: number of batches of the trace's size, such as microbatches.
    """
    consumers = _consumers(partition)
    found = []
    for name in partition.reductions[stage]:
        deferred = _find(partition, stage, name, consumers)
        if deferred is None:
            continue
        sizes = [_num_bytes(partition.tensor(tensor)) for tensor in deferred.tensors]
        variable = partition.graph.recording.variables[name]
        gradient_bytes = variable.shape.num_elements() * variable.dtype.size
        if num_batches * sum(sizes) <= gradient_bytes:
            found.append(deferred)
    return tuple(found)


def without_deferred(subgraph: Subgraph, deferred: Sequence[DeferredGradient]) -> Subgraph:
    """Returns the backward subgraph that returns the gradients' tensors instead of gradients."""
    ops = {name for each in deferred for name in each.ops}
    gradients = {each.gradient for each in deferred}
    outputs = [name for name in subgraph.outputs if name not in gradients]
    return replace(
        subgraph,
        ops=tuple(name for name in subgraph.ops if name not in ops),
        outputs=tuple(dict.fromkeys((*outputs, *deferred_tensors(deferred)))),
    )


def deferred_tensors(deferred: Iterable[DeferredGradient]) -> tuple[str, ...]:
    """Returns the names of the tensors that gradients need of every microbatch, each once."""
    return tuple(dict.fromkeys(name for each in deferred for name in each.tensors))


def _consumers(partition: StagePartition) -> dict[str, int]:
    """Returns by tensor the number of its uses in a microbatch and by what follows it."""
    graph = partition.graph
    counts: dict[str, int] = {}
    members = graph.microbatch_ops | {
        index for index, op in enumerate(graph.ops) if op.type == REDUCTION
    }
    used = [tensor.name for index in members for tensor in graph.ops[index].inputs]
    used += [tensor.name for tensor in graph.microbatch_outputs]
    used += [message.tensor for message in partition.messages]
    for name in used:
        counts[name] = counts.get(name, 0) + 1
    return counts


def _find(
    partition: StagePartition, stage: int, reduction: str, consumers: dict[str, int]
) -> DeferredGradient | None:
    """Returns how a gradient contracts two tensors; None if it does not."""
    graph, phase = partition.graph, partition.backward_phase(stage)
    gradient = tensor = graph.gradients[reduction]
    ops: list[str] = []
    while True:
        op = tensor.op
        index = graph.op_index[op.name]
        is_own = index in graph.microbatch_ops and partition.phases[index] == phase
        if not is_own or consumers.get(tensor.name) != 1 or op.control_inputs:
            return None
        ops.append(op.name)
        if op.type not in _UNCHANGING:
            break
        tensor = op.inputs[0]
    contraction = _contraction(op)
    if contraction is None or not all(
        graph.is_per_example[graph.op_index[each.op.name]] and each.shape.is_fully_defined()
        for each in contraction.tensors
    ):
        return None
    first, second = contraction.tensors
    names = (first.name, second.name)
    return DeferredGradient(
        reduction, gradient.name, tuple(ops), names, contraction.axes, contraction.compute
    )


def _contraction(op: Any) -> _Contraction | None:
    """Returns an op as a contraction; None if it is none."""
    if op.type == "MatMul":
        transposed = {name: op.get_attr(name) for name in ("transpose_a", "transpose_b")}
        axes = (0 if transposed["transpose_a"] else 1, 1 if transposed["transpose_b"] else 0)
        return _Contraction(
            (op.inputs[0], op.inputs[1]), axes, partial(_matmul, transposed=transposed)
        )
    if op.type == "Conv2DBackpropFilter":
        names = ("strides", "padding", "explicit_paddings", "data_format", "dilations")
        attributes = {name: _text(op.get_attr(name)) for name in names}
        if not op.outputs[0].shape.is_fully_defined():
            return None
        compute = partial(
            _filter_gradient, shape=op.outputs[0].shape.as_list(), attributes=attributes
        )
        return _Contraction((op.inputs[0], op.inputs[2]), (0, 0), compute)
    if op.type == "Einsum" and len(op.inputs) == 2:
        equation = _text(op.get_attr("equation"))
        operands, _, result = equation.partition("->")
        first, second = operands.split(",")
        summed = [label for label in first if label in second and label not in result]
        labels = "".join((first, second, result))
        if not summed or not labels.isalpha() or _repeats(first) or _repeats(second):
            return None
        axes = (first.index(summed[0]), second.index(summed[0]))
        return _Contraction((op.inputs[0], op.inputs[1]), axes, partial(_einsum, equation=equation))
    return None


def _repeats(labels: str) -> bool:
    return len({*labels}) < len(labels)


def _matmul(first: Any, second: Any, transposed: dict[str, bool]) -> Any:
    return tf.raw_ops.MatMul(a=first, b=second, **transposed)


def _filter_gradient(
    inputs: Any, gradients: Any, shape: list[int], attributes: dict[str, Any]
) -> Any:
    return tf.raw_ops.Conv2DBackpropFilter(
        input=inputs, filter_sizes=shape, out_backprop=gradients, **attributes
    )


def _einsum(first: Any, second: Any, equation: str) -> Any:
    return tf.raw_ops.Einsum(inputs=[first, second], equation=equation)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _num_bytes(tensor: Any) -> int:
    return int(tensor.shape.num_elements() * tensor.dtype.size)
