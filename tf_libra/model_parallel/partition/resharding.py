"""Transfer of a tensor's samples from the replicas of one stage to those of another."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from tf_libra.model_parallel.capture.batch_axes import BatchAxes
from tf_libra.model_parallel.partition.batch_sharding import BatchShards, Range
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.stage_partition import StageMessage, StagePartition


@dataclass(frozen=True)
class ReshardingPiece:
    """The part of a tensor that one rank sends to another, or to another stage of its own.

    Attributes:
        rank: the other.
        own: which of it, along the axis of the tensor as it is here.
        weight: what the receiver multiplies it with.
    """

    rank: int
    own: Range
    weight: float


class Resharding(NamedTuple):
    """The parts of a tensor that one rank sends, or receives, in every microbatch.

    Attributes:
        message: the tensor, and between which stages.
        axis: along which it is divided; None: every piece is all of it.
        pieces: with whom; what is received whole is added up.
    """

    message: StageMessage
    axis: int | None
    pieces: tuple[ReshardingPiece, ...]


def exchange_of(
    cut: StagePartition,
    axes: BatchAxes,
    shares: BatchShards,
    message: StageMessage,
    rank: int,
    sends: bool,
) -> Resharding:
    """Returns the parts of a message that a rank sends or receives.

    Args:
        cut: the step, traced for the samples that the rank computes.
        axes: of the same trace.
        shares: who computes which samples.
        message: between two stages.
        rank: a replica of the stage that sends, or of that which receives.
        sends: which of both.
    """
    layout = shares.layout
    here, there = layout.ranks[message.source], layout.ranks[message.target]
    if not sends:
        here, there = there, here
    if len(here) == len(there):
        whole = ReshardingPiece(there[here.index(rank)], Range(0, 0), 1.0)
        return Resharding(message, None, (whole,))
    axis = axes.batch_axis(message.tensor)
    tensor = cut.tensor(message.tensor)
    own = shares.computed(here, rank, 0)
    # Backward computation of the last stage may be in its forward phase, where no layer ends in it.
    is_gradient = message.source > message.target
    pieces = []
    for other in there:
        theirs = shares.computed(there, other, 0)
        common = own & theirs
        if not common.size:
            continue
        if axis is None:
            wanted = theirs if sends else own
            if _is_averaged(tensor):
                pieces.append(ReshardingPiece(other, Range(0, 0), common.size / wanted.size))
            elif common.start == wanted.start:
                # The same everywhere: from one of them, since what comes is added up.
                pieces.append(ReshardingPiece(other, Range(0, 0), 1.0))
            continue
        weight = 1.0
        if is_gradient and _is_averaged(tensor):
            # A loss is a mean over samples: each weighs more where there are fewer.
            weight = len(layout.ranks[message.target]) / len(layout.ranks[message.source])
        per_sample = tensor.shape[axis] // own.size
        start = (common.start - own.start) * per_sample
        pieces.append(
            ReshardingPiece(other, Range(start, start + common.size * per_sample), weight)
        )
    return Resharding(message, axis, tuple(pieces))


def _is_averaged(tensor: Any) -> bool:
    """Returns whether replicas' values of a tensor without samples are weighted and summed."""
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def check_exchanges(cut: StagePartition, layout: Layout, axes: BatchAxes) -> None:
    """Raises `ValueError` where replicas cannot divide samples, or would have other weights."""
    _check_weights(cut, layout)
    for message in cut.messages:
        source, target = (len(layout.ranks[k]) for k in (message.source, message.target))
        if source == target:
            continue
        axis = axes.batch_axis(message.tensor)
        tensor = cut.tensor(message.tensor)
        depends = cut.graph.is_per_example[cut.graph.op_index[tensor.op.name]]
        if axis is None and not _is_averaged(tensor) and depends:
            raise ValueError(
                f"{cut.graph.recording.name}: {message.tensor} would have to be sent from a stage"
                f" of {source} replicas to one of {target}, and does not belong to single samples"
            )
        if axis is not None and tensor.shape[axis] != axes.batch_size:
            raise ValueError(
                f"{cut.graph.recording.name}: {message.tensor} has the shape {tensor.shape}, and"
                f" stages of {source} and {target} replicas cannot tell its"
                f" {axes.batch_size} samples apart"
            )


def _check_weights(cut: StagePartition, layout: Layout) -> None:
    graph = cut.graph
    for variable in graph.recording.variables.values():
        handle = graph.placeholder_of(variable)
        if handle is None or not graph.is_written_per_example(handle):
            continue
        count = len(layout.ranks[cut.stage_of_variable(handle)])
        if count > 1:
            raise ValueError(
                f"{graph.recording.name}: the forward pass writes the trained"
                f" {graph.variable_name(handle)!r} by samples, and each of {count} replicas has its"
                " own: its stage has to be of one rank, as where there are as many as workers"
            )


def sliced(tensor: Any, axis: int | None, whole: Range, part: Range) -> Any:
    """A part of what is there of a tensor along an axis."""
    assert axis is not None
    if whole == part:
        return tensor
    begin = [0] * tensor.shape.rank
    size = [-1] * tensor.shape.rank
    begin[axis], size[axis] = part.start - whole.start, part.size
    return tf.slice(tensor, begin, size)


def joined(parts: list[Any], axis: int | None) -> Any:
    """Parts one behind the other."""
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis)
