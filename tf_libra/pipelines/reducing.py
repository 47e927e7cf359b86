"""A stage's gradients are all-reduced among its replicas while the last of them are computed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.model.cluster import Cluster
from tf_libra.model.layers import LayerGraph
from tf_libra.pipelines.cutting import Cut
from tf_libra.pipelines.transport import Transport
from tf_libra.planning.pipeline.reduction import Reduction, plan_reduction

Groups = tuple[tuple[str, ...], ...]
"""Names of the reductions that are fused, in the order in which their gradients are produced."""


def in_production_order(cut: Cut, stage: int) -> list[str]:
    """The reductions of a stage, by the places of the ops that compute their gradients."""
    gradients = cut.graph.gradients
    return sorted(cut.variables[stage], key=lambda name: cut.graph.place[gradients[name].op.name])


def reduction_of(
    cut: Cut, stage: int, num_replicas: int, layers: LayerGraph, rate: float, latency: float
) -> Reduction | None:
    """How LIBRA's planner fuses the gradients of a stage; None where there are none.

    Backward computation of each layer is spread evenly over its gradients.

    Args:
        cut: the step in stages.
        stage: which.
        num_replicas: of the stage, at least 2.
        layers: as they were measured; the step's.
        rate: the least between two replicas, bytes per second.
        latency: of a message between two, seconds.
    """
    names = in_production_order(cut, stage)
    if not names:
        return None
    layer_of = {name: cut.layer_of_gradient(name) for name in names}
    _, backward = layers.replica_seconds(num_replicas)
    counts = {layer: list(layer_of.values()).count(layer) for layer in layer_of.values()}
    # Of gradients the shape is not always known.
    sizes = [_num_bytes(cut.graph.recording.variables[name]) for name in names]
    seconds = [float(backward[layer_of[name]]) / counts[layer_of[name]] for name in names]
    return plan_reduction(sizes, seconds, num_replicas, rate, latency)


def groups_of(
    cut: Cut, ranks: Sequence[Sequence[int]], layers: LayerGraph, cluster: Cluster, latency: float
) -> list[list[list[str]]]:
    """For every stage with replicas how its gradients are fused, as JSON can say it.

    A stage whose gradients are best reduced at once, when all are there, has no groups; nor has one
    whose last backward computation another stage waits for, which all-reduces within it would keep.

    Args:
        cut: the step in stages.
        ranks: of every stage.
        layers: as they were measured.
        cluster: likewise.
        latency: of a message, seconds.
    """
    found = []
    for stage, members in enumerate(ranks):
        groups: list[list[str]] = []
        is_awaited = any(one.sent_in == cut.backward(stage) for one in cut.messages)
        if len(members) > 1 and not is_awaited:
            rate = cluster.rate_among(members)
            reduction = reduction_of(cut, stage, len(members), layers, rate, latency)
            if reduction is not None and len(reduction.groups) > 1:
                names = in_production_order(cut, stage)
                groups = [names[start:stop] for start, stop in reduction.groups]
        found.append(groups)
    return found


def _num_bytes(variable: Any) -> int:
    return int(variable.shape.num_elements() * variable.dtype.size)


@dataclass(frozen=True)
class Reducing:
    """The end of a stage's last backward computation: adds up, and all-reduces group by group.

    Attributes:
        groups: of reductions.
        places: by reduction, which of the computed tensors is its gradient.
        variables: by reduction, of what it is the gradient.
        ranks: the stage's replicas.
        transport: reaches them.
        adds: whether it is given the sums over the microbatches before.
    """

    groups: Groups
    places: Mapping[str, int]
    variables: Mapping[str, Any]
    ranks: tuple[int, ...]
    transport: Transport
    adds: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The reductions in the order in which sums are given, and totals returned."""
        return tuple(name for group in self.groups for name in group)

    @property
    def specs(self) -> list[Any]:
        """Those of the sums."""
        if not self.adds:
            return []
        return [tf.TensorSpec(self.variables[n].shape, self.variables[n].dtype) for n in self.names]

    def __call__(self, computed: list[Any], given: Sequence[Any]) -> list[Any]:
        """What was computed, and behind it the totals over all microbatches and replicas."""
        sums = {name: computed[self.places[name]] for name in self.names}
        if self.adds:
            sums = {name: one + sums[name] for name, one in zip(self.names, given, strict=True)}
        totals: dict[str, Any] = {}
        for number, group in enumerate(self.groups):
            for dtype, names in _by_dtype(group, sums):
                shapes = [self.variables[name].shape for name in names]
                joined = tf.concat([tf.reshape(sums[name], [-1]) for name in names], 0)
                what = f"gradients {number} {dtype.name} of {len(names)}"
                total = self.transport.all_reduce(joined, self.ranks, what)
                pieces = tf.split(total, [shape.num_elements() for shape in shapes])
                for name, piece, shape in zip(names, pieces, shapes, strict=True):
                    totals[name] = tf.reshape(piece, shape)
        return [*computed, *(totals[name] for name in self.names)]


def _by_dtype(group: Sequence[str], sums: Mapping[str, Any]) -> Iterator[tuple[Any, list[str]]]:
    for dtype in dict.fromkeys(sums[name].dtype for name in group):
        yield dtype, [name for name in group if sums[name].dtype == dtype]
