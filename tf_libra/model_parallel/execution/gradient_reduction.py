"""A stage's gradients: summed over microbatches, all-reduced among its replicas, averaged."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.partition.stage_partition import StagePartition

Groups = tuple[tuple[str, ...], ...]
"""Names of the reductions that are fused, in the order in which their gradients are produced."""


# A tensor of so many bytes goes by itself: putting it with others would take longer than one more
# all-reduce does.
_ALONE_BYTES = 1 << 20


def fused_all_reduce(
    tensors: Mapping[str, Any], ranks: Sequence[int], transport: Transport, name: str
) -> dict[str, Any]:
    """Sums tensors over ranks: large ones one by one, others by one all-reduce per dtype.

    Args:
        tensors: of known shapes.
        ranks: all of which call it, for the same tensors in the same order.
        transport: reaches them.
        name: unique among the concurrent all-reduces between the same ranks.
    """
    totals: dict[str, Any] = {}
    for number, (key, one) in enumerate(tensors.items()):
        if one.shape.num_elements() * one.dtype.size >= _ALONE_BYTES:
            totals[key] = transport.all_reduce(one, ranks, f"gradients {name}: {number}")
    small = {key: one for key, one in tensors.items() if key not in totals}
    for dtype in dict.fromkeys(one.dtype for one in small.values()):
        some = {key: one for key, one in small.items() if one.dtype == dtype}
        flat = tf.concat([tf.reshape(one, [-1]) for one in some.values()], 0)
        total = transport.all_reduce(flat, ranks, f"gradients {name}: {dtype.name}")
        pieces = tf.split(total, [one.shape.num_elements() for one in some.values()])
        for (key, one), piece in zip(some.items(), pieces, strict=True):
            totals[key] = tf.reshape(piece, one.shape)
    return totals


@dataclass(frozen=True)
class GradientReduction:
    """The processing of gradients at the end of a stage's backward pass of a microbatch.

    The gradients are added to the sums over the microbatches before, all-reduced group by group,
    and averaged. This happens in the function that has computed them, where TensorFlow adds in
    place. Tensors that other stages wait for are sent as soon as they are computed, without
    waiting for an all-reduce.

    Attributes:
        names: of the stage's reductions, in the order in which sums are given and returned.
        places: by reduction, which of the computed tensors is its gradient.
        kept: which of the computed tensors are returned: those that are not only gradients.
        variables: by reduction, of what it is the gradient.
        name: tells its all-reduces apart from others between the same ranks.
        adds: whether it is given the sums over the microbatches before.
        divisor: what the sums are divided by in the end; 1 before the last microbatch.
        groups: of reductions, all-reduced; the others are not.
        ranks: the stage's replicas, where there are groups.
        transport: reaches the replicas, if there are groups.
        send: sends the computed tensors that other stages need; None: the caller sends them.
    """

    names: tuple[str, ...]
    places: Mapping[str, int]
    kept: tuple[int, ...]
    variables: Mapping[str, Any]
    name: str
    adds: bool = False
    divisor: int = 1
    groups: Groups = ()
    ranks: tuple[int, ...] = ()
    transport: Transport | None = None
    send: Callable[[list[Any]], None] | None = None

    @classmethod
    def of(cls, cut: StagePartition, stage: int, others: Collection[str]) -> "GradientReduction":
        """The end of a stage's backward computation of the first microbatch of several.

        Args:
            cut: the step in stages.
            stage: which.
            others: names of the tensors that are needed for themselves.
        """
        gradients = {name: cut.graph.gradients[name].name for name in cut.variables[stage]}
        gives = cut.parts[cut.backward(stage)].gives
        only_summed = set(gradients.values()) - set(others)
        return cls(
            tuple(gradients),
            {name: gives.index(one) for name, one in gradients.items()},
            tuple(place for place, one in enumerate(gives) if one not in only_summed),
            {name: cut.graph.recording.variables[name] for name in gradients},
            f"of stage {stage}",
        )

    @property
    def specs(self) -> list[Any]:
        """The specs of the sums over the microbatches before."""
        if not self.adds:
            return []
        return [tf.TensorSpec(self.variables[n].shape, self.variables[n].dtype) for n in self.names]

    def __call__(self, computed: list[Any], given: Sequence[Any]) -> list[Any]:
        """Returns the kept tensors, followed by the sums or, in the last microbatch, averages."""
        # Of gradients the shape is not always known.
        sums = {
            name: tf.ensure_shape(computed[self.places[name]], self.variables[name].shape)
            for name in self.names
        }
        if self.adds:
            sums = {name: sums[name] + before for name, before in zip(sums, given, strict=True)}
        for number, group in enumerate(self.groups):
            assert self.transport is not None
            name = f"{self.name}, group {number}"
            sums |= fused_all_reduce(
                {one: sums[one] for one in group}, self.ranks, self.transport, name
            )
        if self.divisor != 1:
            sums = {name: one / tf.cast(self.divisor, one.dtype) for name, one in sums.items()}
        # Traced last: TensorFlow lets what has an effect begin in the order of the trace, and what
        # is sent is among the last that is computed.
        if self.send is not None:
            self.send(computed)
        return [*(computed[place] for place in self.kept), *(sums[name] for name in self.names)]
