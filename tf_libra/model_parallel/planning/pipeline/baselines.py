"""Baselines of SPP (SPP, sections II and V), all with SPP's barrier between iterations.

They ignore differences between links. GPipe takes devices in the order of their numbers. PipeDream
assumes one rate within nodes and one between nodes. HetPipe has one pipeline per node.
"""

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tf_libra.internal.values import Int32Count
from tf_libra.model_parallel.planning.pipeline.spp import execution_orders
from tf_libra.model_parallel.planning.pipeline.strategy import (
    PipelineDraft,
    PipelineStrategyBase,
    register,
)
from tf_libra.planning.arguments import argument
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import Computation, PipelineStage

# Least ratio of rates that separates links within nodes from links between nodes.
_NODE_RATIO = 1.5


@register
@dataclass(frozen=True, kw_only=True)
class GPipe(PipelineStrategyBase):
    """GPipe: balanced numbers of layers per device, all forward computation before any backward.

    Stages are not replicated. Devices are taken in the order of their numbers; surplus devices stay
    idle.
    """

    name: ClassVar[str] = "gpipe"
    num_stages: Int32Count | None = argument(
        None,
        "fixed number of stages; None: one per device, or per layer if there are fewer layers.",
    )

    def draft(self, layers: LayerGraph, cluster: Cluster, num_microbatches: int) -> PipelineDraft:
        """Return the stages."""
        count = self.num_stages or min(len(layers.layers), cluster.num_devices)
        parts = np.array_split(np.arange(len(layers.layers)), count)
        order: tuple[Computation, ...] = (
            *(("forward", microbatch) for microbatch in range(num_microbatches)),
            *(("backward", microbatch) for microbatch in reversed(range(num_microbatches))),
        )
        return PipelineDraft(
            tuple(
                PipelineStage(int(part[0]), int(part[-1]) + 1, (device,), order)
                for device, part in enumerate(parts)
            )
        )


@register
@dataclass(frozen=True, kw_only=True)
class PipeDream(PipelineStrategyBase):
    """PipeDream, with a barrier: minimizes the largest stage time, alternates forward and backward.

    PipeDream's dynamic program runs twice: first stages and replicas within a node for every range
    of layers, then over the nodes. All rates within nodes count as the least of them, and so do all
    rates between nodes. A transfer between stages is not divided among replicas. Nodes of different
    sizes are divided into groups whose size is the greatest common divisor.
    """

    name: ClassVar[str] = "pipedream"

    def draft(self, layers: LayerGraph, cluster: Cluster, num_microbatches: int) -> PipelineDraft:
        """Return the stages."""
        groups = equal_groups(cluster)
        if len(groups) == 1:
            groups = tuple((device,) for device in groups[0])
        within, between = _rates(cluster, groups)
        parameters = _ranges(layers.parameter_bytes)
        crossing = 2 * num_microbatches * layers.cut_bytes
        computation = num_microbatches * _ranges(layers.forward_seconds + layers.backward_seconds)
        computation = computation + _ranges(layers.deferred_seconds)
        inner = _Level(computation, parameters, crossing, len(groups[0]), within)
        outer = _Level(inner.least[-1], parameters, crossing, len(groups), between)
        stages: list[tuple[int, int, tuple[int, ...]]] = []
        first = 0
        for start, stop, nodes in outer.stages(0, len(layers.layers)):
            offset = 0
            for inner_start, inner_stop, width in inner.stages(start, stop):
                devices = [
                    groups[node][offset + replica]
                    for node in range(first, first + nodes)
                    for replica in range(width)
                ]
                stages.append((inner_start, inner_stop, tuple(devices)))
                offset += width
            first += nodes
        return PipelineDraft(_alternating(stages, num_microbatches))


@register
@dataclass(frozen=True, kw_only=True)
class HetPipe(PipelineStrategyBase):
    """HetPipe, with a barrier: one pipeline per node, data parallelism between nodes.

    Each device of a node has one stage, without replicas in the node, and the largest time of a
    stage or channel is minimal. All nodes have the same stages, so a stage has one replica on each
    node. Every microbatch is divided among the nodes. Nodes of different sizes are divided into
    groups whose size is the greatest common divisor.
    """

    name: ClassVar[str] = "hetpipe"

    def draft(self, layers: LayerGraph, cluster: Cluster, num_microbatches: int) -> PipelineDraft:
        """Return the stages."""
        groups = equal_groups(cluster)
        within, _ = _rates(cluster, groups)
        count = min(len(groups[0]), len(layers.layers))
        computation = _ranges(np.add(*layers.replica_seconds(len(groups))))
        crossing = 2 * layers.cut_bytes / len(groups) / within
        cuts = balanced_cuts(num_microbatches * computation, num_microbatches * crossing, count)
        stages = [
            (start, stop, tuple(group[stage] for group in groups))
            for stage, (start, stop) in enumerate(itertools.pairwise(cuts))
        ]
        return PipelineDraft(_alternating(stages, num_microbatches))


@register
@dataclass(frozen=True, kw_only=True)
class DataParallel(PipelineStrategyBase):
    """Data parallelism: the whole model on every device, and one all-reduce per iteration."""

    name: ClassVar[str] = "data-parallel"

    @property
    def num_stages(self) -> int:
        """Number of stages: 1."""
        return 1

    def draft(self, layers: LayerGraph, cluster: Cluster, num_microbatches: int) -> PipelineDraft:
        """Return the single stage."""
        (order,) = execution_orders(1, num_microbatches)
        devices = tuple(range(cluster.num_devices))
        return PipelineDraft((PipelineStage(0, len(layers.layers), devices, order),))


def nodes_of(cluster: Cluster) -> tuple[tuple[int, ...], ...]:
    """Return the devices of each node, which the cluster defines or its rates suggest.

    The guess: of all successive rates, the two with the largest ratio, if it is at least 1.5,
    separate links between nodes from links within nodes. Without such a ratio, all devices are on
    one node.
    """
    count = cluster.num_devices
    if cluster.nodes is not None:
        labels = list(cluster.nodes)
    else:
        rates = np.unique(cluster.rates[cluster.rates > 0])
        ratios = rates[1:] / rates[:-1]
        if len(ratios) == 0 or ratios.max() < _NODE_RATIO:
            return (tuple(range(count)),)
        fast = cluster.rates >= rates[1 + int(ratios.argmax())]
        labels = list(range(count))
        for device in range(count):
            # A device and the neighbours on fast links become one node.
            joined = {labels[device], *(labels[other] for other in np.flatnonzero(fast[device]))}
            labels = [min(joined) if label in joined else label for label in labels]
    return tuple(
        tuple(device for device in range(count) if labels[device] == label)
        for label in dict.fromkeys(labels)
    )


def equal_groups(cluster: Cluster) -> tuple[tuple[int, ...], ...]:
    """Return the devices in groups of one size, each a node or a part of one."""
    nodes = nodes_of(cluster)
    size = math.gcd(*map(len, nodes))
    return tuple(
        node[first : first + size] for node in nodes for first in range(0, len(node), size)
    )


def balanced_cuts(
    seconds: NDArray[np.float64], crossing: NDArray[np.float64], num_stages: int
) -> list[int]:
    """Return the cuts of L layers into stages that minimize the largest time.

    Args:
      seconds: seconds of a stage of layers i to j, shape [L + 1, L + 1]; infinite if empty.
      crossing: seconds of the channel after layer i, shape [L - 1].
      num_stages: number of stages.

    Returns:
      num_stages + 1 indices of layers, from 0 to L.
    """
    layers = len(seconds) - 1
    behind = np.concatenate([[np.inf], crossing, [np.inf]])
    least, choices = seconds[0], []
    for _ in range(num_stages - 1):
        candidates = np.maximum(np.maximum(least, behind)[:, None], seconds)
        choices.append(candidates.argmin(axis=0))
        least = candidates.min(axis=0)
    cuts = [layers]
    for choice in reversed(choices):
        cuts.append(int(choice[cuts[-1]]))
    return [0, *cuts[::-1]]


class _Level:
    """Level of PipeDream's dynamic program: A(i to j, m) for all ranges of layers and m.

    Args:
      seconds: seconds of layers i to j on one unit of this level, shape [L + 1, L + 1].
      parameters: bytes of layers i to j, shape [L + 1, L + 1].
      crossing: bytes through the channel after layer i, shape [L - 1].
      units: number of devices or nodes.
      rate: bytes per second between any two of them.
    """

    def __init__(
        self,
        seconds: NDArray[np.float64],
        parameters: NDArray[np.float64],
        crossing: NDArray[np.float64],
        units: int,
        rate: float,
    ) -> None:
        channels = np.concatenate([[0.0], crossing, [0.0]]) / rate
        sent = np.where(np.isfinite(parameters), parameters, 0.0) / rate
        # T(i to j, m): one stage on m units.
        self._stage = [seconds / m + 2 * (m - 1) / m * sent for m in range(1, units + 1)]
        self._choice: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self.least: list[NDArray[np.float64]] = []
        for m in range(1, units + 1):
            best = self._stage[m - 1].copy()
            cuts = np.zeros(best.shape, np.int64)
            widths = np.full(best.shape, m, np.int64)  # of the last stage
            for width in range(1, m):
                before = np.maximum(self.least[m - width - 1], channels)
                for start in range(len(best) - 1):
                    candidates = np.maximum(before[start][:, None], self._stage[width - 1])
                    at = candidates.argmin(axis=0)
                    values = candidates[at, np.arange(len(best))]
                    better = values < best[start]
                    best[start][better] = values[better]
                    cuts[start][better] = at[better]
                    widths[start][better] = width
            self.least.append(best)
            self._choice.append((cuts, widths))

    def stages(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return first layer, stop layer, and units of each stage of a range on all units."""
        found = []
        units = len(self.least)
        while units > 0:
            cuts, widths = self._choice[units - 1]
            width = int(widths[start, stop])
            first = start if width == units else int(cuts[start, stop])
            found.append((first, stop, width))
            stop, units = first, units - width
        return found[::-1]


def _rates(cluster: Cluster, groups: tuple[tuple[int, ...], ...]) -> tuple[float, float]:
    """Return the least rates within and between groups; infinite without such a link."""
    group_of = np.empty(cluster.num_devices, int)
    for index, group in enumerate(groups):
        group_of[list(group)] = index
    linked = cluster.rates > 0
    same = group_of[:, None] == group_of
    return (
        float(cluster.rates[linked & same].min(initial=np.inf)),
        float(cluster.rates[linked & ~same].min(initial=np.inf)),
    )


def _ranges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums of entries i to j, shape [L + 1, L + 1]; infinite for empty ranges."""
    before = np.concatenate([[0.0], np.cumsum(values)])
    sums = before - before[:, None]
    sums[np.tril_indices(len(sums))] = np.inf
    return sums


def _alternating(
    stages: list[tuple[int, int, tuple[int, ...]]], num_microbatches: int
) -> tuple[PipelineStage, ...]:
    """Order stages as PipeDream: warm up with forwards, then alternate backward and forward."""
    found = []
    for index, (start, stop, devices) in enumerate(stages):
        ahead = min(num_microbatches, len(stages) - index)
        order: list[Computation] = [("forward", microbatch) for microbatch in range(ahead)]
        for microbatch in range(num_microbatches):
            order.append(("backward", microbatch))
            if microbatch + ahead < num_microbatches:
                order.append(("forward", microbatch + ahead))
        found.append(PipelineStage(start, stop, devices, tuple(order)))
    return tuple(found)
