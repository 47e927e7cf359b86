"""Resharding of a tensor from the replicas of one stage to those of another."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from tf_libra.model_parallel.capture.batch_axes import BatchAxes
from tf_libra.model_parallel.partition.batch_sharding import BatchShards, ExampleRange
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.stage_partition import StageMessage, StagePartition

_WHOLE = ExampleRange(0, 0)  # the range of a piece that is the whole tensor


@dataclass(frozen=True)
class ReshardingPiece:
    """Part of a tensor that one rank exchanges with another rank, or with another local stage.

    Attributes:
        peer: the other rank.
        local_range: the part, along the batch axis of the local tensor.
        weight: factor by which the receiver multiplies it.
    """

    peer: int
    local_range: ExampleRange
    weight: float


class Resharding(NamedTuple):
    """Parts of a tensor that one rank sends, or receives, in every microbatch.

    Attributes:
        message: the tensor with its source and target stages.
        axis: batch axis along which it is divided; None if every piece is the whole tensor.
        pieces: the parts; received pieces are concatenated along the axis, or added without one.
    """

    message: StageMessage
    axis: int | None
    pieces: tuple[ReshardingPiece, ...]


def plan_resharding(
    partition: StagePartition,
    axes: BatchAxes,
    shards: BatchShards,
    message: StageMessage,
    rank: int,
    is_sender: bool,
) -> Resharding:
    """Returns the parts of a message that a rank sends or receives.

    Args:
        partition: the step, traced for the examples that the rank computes.
        axes: batch axes of the same trace.
        shards: division of examples among ranks.
        message: a message between two stages.
        rank: a replica of the source stage if `is_sender`, else of the target stage.
        is_sender: whether the rank sends.
    """
    layout = shards.layout
    here, there = layout.ranks[message.source], layout.ranks[message.target]
    if not is_sender:
        here, there = there, here
    if len(here) == len(there):
        piece = ReshardingPiece(there[here.index(rank)], _WHOLE, 1.0)
        return Resharding(message, None, (piece,))
    axis = axes.batch_axis(message.tensor)
    tensor = partition.tensor(message.tensor)
    own = shards.computed_range(here, rank, 0)
    # The last stage may compute gradients in its forward phase, if no layer ends in it.
    is_gradient = message.source > message.target
    pieces = []
    for peer in there:
        theirs = shards.computed_range(there, peer, 0)
        common = own & theirs
        if not common.size:
            continue
        if axis is None:
            receiver = theirs if is_sender else own
            if _is_averaged(tensor):
                pieces.append(ReshardingPiece(peer, _WHOLE, common.size / receiver.size))
            elif common.start == receiver.start:
                # All replicas have the same value, and received pieces are added: take one.
                pieces.append(ReshardingPiece(peer, _WHOLE, 1.0))
            continue
        weight = 1.0
        if is_gradient and _is_averaged(tensor):
            # The loss is a mean over the examples of a replica, so gradients scale inversely.
            weight = len(layout.ranks[message.target]) / len(layout.ranks[message.source])
        per_example = tensor.shape[axis] // own.size
        start = (common.start - own.start) * per_example
        part = ExampleRange(start, start + common.size * per_example)
        pieces.append(ReshardingPiece(peer, part, weight))
    return Resharding(message, axis, tuple(pieces))


def _is_averaged(tensor: Any) -> bool:
    """Returns whether replicas' values of a tensor without a batch axis are averaged."""
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def check_resharding(partition: StagePartition, layout: Layout, axes: BatchAxes) -> None:
    """Raises `ValueError` if replicas cannot divide a message, or would have different weights."""
    _check_written_weights(partition, layout)
    graph = partition.graph
    for message in partition.messages:
        source, target = (len(layout.ranks[k]) for k in (message.source, message.target))
        if source == target:
            continue
        axis = axes.batch_axis(message.tensor)
        tensor = partition.tensor(message.tensor)
        is_per_example = graph.is_per_example[graph.op_index[tensor.op.name]]
        if axis is None and not _is_averaged(tensor) and is_per_example:
            raise ValueError(
                f"{graph.recording.name}: stages with {source} and {target} replicas cannot"
                f" exchange {message.tensor}, which depends on examples but has no batch axis"
            )
        if axis is not None and tensor.shape[axis] != axes.batch_size:
            raise ValueError(
                f"{graph.recording.name}: stages with {source} and {target} replicas cannot divide"
                f" {message.tensor}, whose shape {tensor.shape} does not have one row for each of"
                f" {axes.batch_size} examples"
            )


def _check_written_weights(partition: StagePartition, layout: Layout) -> None:
    graph = partition.graph
    for variable in graph.recording.variables.values():
        placeholder = graph.placeholder_of(variable)
        if placeholder is None or not graph.is_written_per_example(placeholder):
            continue
        count = len(layout.ranks[partition.stage_of_variable(placeholder)])
        if count > 1:
            raise ValueError(
                f"{graph.recording.name}: the forward pass writes the trained variable"
                f" {graph.variable_name(placeholder)!r} from examples, which differ between the"
                f" {count} replicas of its stage; the stage needs 1 replica, as with as many"
                " stages as workers"
            )


def slice_range(tensor: Any, axis: int | None, available: ExampleRange, part: ExampleRange) -> Any:
    """Returns a part of a tensor along an axis.

    Args:
        tensor: the tensor.
        axis: the axis.
        available: range that the tensor covers.
        part: range to return.
    """
    assert axis is not None
    if available == part:
        return tensor
    begin = [0] * tensor.shape.rank
    size = [-1] * tensor.shape.rank
    begin[axis], size[axis] = part.start - available.start, part.size
    return tf.slice(tensor, begin, size)


def concat(parts: list[Any], axis: int | None) -> Any:
    """Returns the concatenation of parts, without a copy of a single part."""
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis)
