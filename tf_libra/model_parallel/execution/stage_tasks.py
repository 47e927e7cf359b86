"""Units of a stage's computation on a rank, with the tensors received before and sent after."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import tensorflow as tf

from tf_libra.model_parallel.execution.gradient_reduction import GradientReduction
from tf_libra.model_parallel.execution.input_scatter import Values
from tf_libra.model_parallel.execution.subgraph_function import SubgraphFunction
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.partition.batch_sharding import BatchShards, Range
from tf_libra.model_parallel.partition.resharding import (
    Resharding,
    ReshardingPiece,
    exchange_of,
    sliced,
)
from tf_libra.model_parallel.partition.sized_traces import Traced
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.partition.subgraph import Subgraph


class Awaited(NamedTuple):
    """A tensor that another rank sends in every microbatch.

    Attributes:
        tensor: its name.
        rank: the sender.
        dtype: of the tensor.
        shape: of the tensor.
        target: the stage that takes the tensor.
    """

    tensor: str
    rank: int
    dtype: Any
    shape: list[int]
    target: int


@dataclass(frozen=True)
class Block:
    """Forward or backward of a stage, on one rank.

    Attributes:
        functions: by microbatch, what it computes.
        receives: before that.
        awaited: of which this comes from other ranks.
        sends: after it.
        returns: names of the tensors among its results which the step returns.
        sends_itself: the microbatch of which the function sends, before it all-reduces; None: of
            none.
    """

    functions: Mapping[int, SubgraphFunction]
    receives: tuple[Resharding, ...]
    awaited: tuple[Awaited, ...]
    sends: tuple[Resharding, ...]
    returns: tuple[str, ...]
    sends_itself: int | None


class Blocks:
    """Makes the blocks of one rank."""

    def __init__(self, shares: BatchShards, returned: Sequence[str], transport: Transport) -> None:
        """Makes none yet.

        Args:
            shares: who computes which samples.
            returned: names of the tensors that the step returns of samples.
            transport: reaches the other ranks.
        """
        self._shares = shares
        self._layout = shares.layout
        self._returned = returned
        self._transport = transport

    def block(self, traced: Traced, kind: str, stage: int) -> Block:
        """One of them.

        Args:
            traced: for the samples of a microbatch that this rank computes.
            kind: "forward" or "backward".
            stage: of this rank.
        """
        cut, rank = traced.cut, self._transport.rank
        phase = cut.forward(stage) if kind == "forward" else cut.backward(stage)

        def exchange(message: Any, sends: bool) -> Resharding:
            return exchange_of(cut, traced.axes, self._shares, message, rank, sends)

        sends = tuple(exchange(m, sends=True) for m in cut.messages if m.sent_in == phase)
        receives = tuple(
            exchange(m, sends=False)
            for m in cut.messages
            if m.needed_in == phase and m.target == stage
        )
        returns = tuple(name for name in self._returned if cut.phase_of(cut.tensor(name)) == phase)
        part = cut.parts[phase]
        replica = self._layout.ranks[stage].index(rank)

        def function(reducing: GradientReduction | None = None) -> SubgraphFunction:
            return SubgraphFunction.of(traced.extraction, part, reducing, replica)

        in_order = [m for k, s, m in self._layout.orders[rank] if (k, s) == (kind, stage)]
        sends_itself = None
        if kind == "forward":
            functions = dict.fromkeys(in_order, function())
        else:
            first, last, between = in_order[0], in_order[-1], in_order[1:-1]
            others = {*returns, *(one.message.tensor for one in sends)}
            alone = GradientReduction.of(cut, stage, others)
            adding = replace(alone, adds=True)
            before = alone if first == last else adding
            ending = self._ending(before, cut, stage, part, sends, last)
            functions = {last: function(ending)}
            if first != last:
                functions[first] = function(alone)
            if between:
                functions |= dict.fromkeys(between, function(adding))
            sends_itself = last if ending.groups else None
        awaited = self._awaited(cut, receives)
        return Block(functions, receives, awaited, sends, returns, sends_itself)

    def _awaited(self, cut: StagePartition, receives: Sequence[Resharding]) -> tuple[Awaited, ...]:
        """Returns the tensors that other ranks send; found once to save time between blocks."""
        found = []
        for message, axis, pieces in receives:
            tensor = cut.tensor(message.tensor)
            for piece in pieces:
                shape = tensor.shape.as_list()
                if axis is not None:
                    shape[axis] = piece.own.size
                if piece.rank != self._transport.rank:
                    found.append(
                        Awaited(message.tensor, piece.rank, tensor.dtype, shape, message.target)
                    )
        return tuple(found)

    def _ending(
        self,
        before: GradientReduction,
        cut: StagePartition,
        stage: int,
        part: Subgraph,
        sends: tuple[Resharding, ...],
        microbatch: int,
    ) -> GradientReduction:
        """Returns the gradient reduction of the last microbatch, given that of another one."""
        groups, ranks = self._layout.groups_of(stage), self._layout.ranks[stage]

        def send_computed(computed: list[Any]) -> None:
            values = dict(zip(part.gives, computed, strict=True))
            for name in dict.fromkeys(one.message.tensor for one in sends):
                values[name] = tf.ensure_shape(values[name], cut.tensor(name).shape)
            send(self._transport, sends, microbatch, values)

        return replace(
            before,
            divisor=self._layout.num_microbatches * len(ranks),
            groups=groups,
            ranks=ranks,
            transport=self._transport,
            send=send_computed if groups else None,
        )


def send(
    transport: Transport, sends: Sequence[Resharding], microbatch: int, values: Values
) -> None:
    """To other ranks, now or, of a function that is being traced, when it is computed."""
    for message, axis, pieces in sends:
        for piece in pieces:
            if piece.rank != transport.rank:
                part = part_of(values[message.tensor], axis, piece)
                name = sent_as(message.tensor, message.target, microbatch)
                transport.send(part, piece.rank, name)


def sent_as(tensor: str, target: int, microbatch: int) -> str:
    """The name of what is sent from stage to stage."""
    return f"{tensor} {target} {microbatch}"


def part_of(tensor: Any, axis: int | None, piece: ReshardingPiece) -> Any:
    """Returns the part of a tensor that one rank gets."""
    return tensor if axis is None else sliced(tensor, axis, Range(0, tensor.shape[axis]), piece.own)
