"""A stage's gradients are all-reduced among its replicas while the last of them are computed."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.model.layers import LayerGraph
from tf_libra.model.pipeline import PipelinePlan
from tf_libra.pipelines.cutting import Cut
from tf_libra.pipelines.links import Links
from tf_libra.pipelines.transport import Transport
from tf_libra.planning.pipeline.reduction import Reduction, plan_reduction, worthwhile
from tf_libra.simulation import simulate_pipeline

Groups = tuple[tuple[str, ...], ...]
"""Names of the reductions that are fused, in the order in which their gradients are produced."""


def fused_all_reduce(
    tensors: Mapping[str, Any], ranks: Sequence[int], transport: Transport, name: str
) -> dict[str, Any]:
    """The sums over ranks, by one all-reduce for each dtype.

    Args:
        tensors: of known shapes.
        ranks: all of which call it, for the same tensors in the same order.
        transport: reaches them.
        name: what is under way at once between the same ranks has another one.
    """
    totals: dict[str, Any] = {}
    for dtype in dict.fromkeys(one.dtype for one in tensors.values()):
        some = {key: one for key, one in tensors.items() if one.dtype == dtype}
        flat = tf.concat([tf.reshape(one, [-1]) for one in some.values()], 0)
        total = transport.all_reduce(flat, ranks, f"gradients {name}: {dtype.name}")
        pieces = tf.split(total, [one.shape.num_elements() for one in some.values()])
        for (key, one), piece in zip(some.items(), pieces, strict=True):
            totals[key] = tf.reshape(piece, one.shape)
    return totals


def in_production_order(cut: Cut, stage: int) -> list[str]:
    """The reductions of a stage, by the places of the ops that compute their gradients."""
    gradients = cut.graph.gradients
    return sorted(cut.variables[stage], key=lambda name: cut.graph.place[gradients[name].op.name])


def reduction_of(
    cut: Cut,
    names: Sequence[str],
    num_replicas: int,
    layers: LayerGraph,
    rate: float,
    latency: float,
) -> Reduction:
    """How LIBRA's planner fuses the gradients of a stage.

    Backward computation of each layer is spread evenly over its gradients.

    Args:
        cut: the step in stages.
        names: of the stage's reductions, in the order in which gradients are produced.
        num_replicas: of the stage, at least 2.
        layers: as they were measured; the step's.
        rate: the least between two replicas, bytes per second.
        latency: of a message between two, seconds.
    """
    layer_of = {name: cut.layer_of_gradient(name) for name in names}
    _, backward = layers.replica_seconds(num_replicas)
    counts = Counter(layer_of.values())
    # Of gradients the shape is not always known.
    sizes = [_num_bytes(cut.graph.recording.variables[name]) for name in names]
    seconds = [float(backward[layer]) / counts[layer] for layer in layer_of.values()]
    return plan_reduction(sizes, seconds, num_replicas, rate, latency)


def groups_of(
    cut: Cut, plan: PipelinePlan, layers: LayerGraph, links: Links
) -> list[list[list[str]]]:
    """For every stage with replicas how its gradients are fused, as JSON can say it.

    A stage whose gradients are as well reduced at once, when all are there, has no groups.

    Args:
        cut: the step in stages.
        plan: the same stages.
        layers: as they were measured.
        links: likewise.
    """
    found: list[list[list[str]]] = [[] for _ in plan.stages]
    gains: dict[int, float] = {}
    for stage, one in enumerate(plan.stages):
        names = in_production_order(cut, stage)
        if len(one.devices) > 1 and names:
            rate = links.cluster.rate_among(one.devices)
            told = (layers, rate, links.latency_seconds)
            reduction = reduction_of(cut, names, len(one.devices), *told)
            found[stage] = [names[start:stop] for start, stop in reduction.groups]
            gains[stage] = reduction.at_once_seconds - reduction.predicted_seconds
    timeline = simulate_pipeline(layers, plan, links.cluster)
    worth = worthwhile(timeline, gains)
    return [groups if stage in worth else [] for stage, groups in enumerate(found)]


def _num_bytes(variable: Any) -> int:
    return int(variable.shape.num_elements() * variable.dtype.size)


@dataclass(frozen=True)
class Reducing:
    """The end of a stage's last backward computation: sends, and all-reduces group by group.

    What other stages wait for is sent as soon as it is computed, and waits for no all-reduce.

    Attributes:
        groups: of reductions.
        places: by reduction, which of the computed tensors is its gradient.
        variables: by reduction, of what it is the gradient.
        ranks: the stage's replicas.
        transport: reaches them.
        adds: whether it is given the sums over the microbatches before.
        name: tells its all-reduces apart from others between the same ranks.
        send: sends what others need of what was computed.
    """

    groups: Groups
    places: Mapping[str, int]
    variables: Mapping[str, Any]
    ranks: tuple[int, ...]
    transport: Transport
    adds: bool
    name: str
    send: Callable[[list[Any]], None]

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
            shaped = {n: tf.ensure_shape(sums[n], self.variables[n].shape) for n in group}
            name = f"{self.name}, group {number}"
            totals |= fused_all_reduce(shaped, self.ranks, self.transport, name)
        # Traced last: TensorFlow lets what has an effect begin in the order of the trace, and what
        # is sent is among the last that is computed.
        self.send(computed)
        return [*computed, *(totals[name] for name in self.names)]
