"""Pipeline partition, replication and mapping (PRM): SPP, Algorithm 4, bottom up."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tf_libra.internal import formatting
from tf_libra.planning.tolerance import within
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelineStage

StageRange = tuple[int, int, tuple[int, ...]]
"""First layer, one past the last, devices."""


class Partitions:
    """W(l, xi, r, i) of SPP, section IV-B, for all its arguments.

    W is the least bottleneck if the first l layers form xi stages on the first i devices of an
    order, with the last stage on r of them. The bottleneck is the largest busy time, per iteration,
    of a stage with its all-reduce or of a channel.

    Filling it takes O(V^2) steps over arrays of at most V·L^2 and V^2·L numbers.

    Args:
      layers: costs of a microbatch.
      cluster: rates between devices.
      order: used devices of the cluster, in the order of `device_ordering.device_order`.
      num_microbatches: M.
    """

    def __init__(
        self, layers: LayerGraph, cluster: Cluster, order: Sequence[int], num_microbatches: int
    ) -> None:
        self._order = tuple(order)
        self._rates = cluster.rates[np.ix_(self._order, self._order)]
        self._efficiency = cluster.all_reduce_efficiency
        devices, count = len(self._order), len(layers.layers)
        self.max_stages = min(devices, count)
        memory = np.inf if cluster.memory_bytes is None else cluster.memory_bytes
        self._bytes = _ranges(layers.parameter_bytes)
        self._too_large = ~within(COPIES * self._bytes, memory)
        # Bytes through a channel after layer l' in an iteration, both ways; 0 before the first and
        # after the last layer.
        self._crossing = 2 * num_microbatches * np.concatenate([[0.0], layers.cut_bytes, [0.0]])
        self._computation = [
            num_microbatches * _before(np.add(*layers.replica_seconds(replicas)))
            + _before(layers.deferred_seconds) / replicas
            for replicas in range(1, devices + 1)
        ]
        # For each number of devices i: [xi - 1, l, r - 1].
        self._least: list[NDArray[np.float64]] = []
        for used in range(devices + 1):
            table = np.full((min(used, count), count + 1, used), np.inf)
            for replicas in range(1, used + 1):
                stage = self._stage_seconds(used, replicas)
                if replicas == used:
                    table[0, :, used - 1] = stage[0]
                    continue
                before = self._before_last(used, replicas)[: len(table) - 1, :, None]
                table[1 : 1 + len(before), :, replicas - 1] = np.maximum(before, stage).min(axis=1)
            self._least.append(table)

    def seconds(self, num_stages: int) -> float:
        """Return W(xi) for a number of stages: the minimum over the last stage's replicas."""
        return float(self._least[-1][num_stages - 1, -1].min())

    def stages(self, num_stages: int) -> list[StageRange] | None:
        """Return stages with `seconds(num_stages)`; None if links or memory forbid this number.

        Ties follow the order of Algorithm 4: fewer replicas of the last stage, then more layers in
        it, then fewer replicas of the previous stage.
        """
        if not np.isfinite(self.seconds(num_stages)):
            return None
        layer, used = len(self._bytes) - 1, len(self._order)
        replicas = 1 + int(self._least[-1][num_stages - 1, -1].argmin())
        stages: list[StageRange] = []
        for remaining in range(num_stages, 1, -1):
            devices = self._order[used - replicas : used]
            stage = self._stage_seconds(used, replicas)[:, layer, None]
            earlier = np.maximum(
                self._least[used - replicas][remaining - 2], self._channels(used, replicas)
            )
            choices = np.maximum(earlier, stage)
            cut, last = np.unravel_index(int(choices.argmin()), choices.shape)
            stages.append((int(cut), layer, devices))
            layer, used, replicas = int(cut), used - replicas, int(last) + 1
        stages.append((0, layer, self._order[:used]))
        return stages[::-1]

    def _stage_seconds(self, used: int, replicas: int) -> NDArray[np.float64]:
        """Return seconds of stage l' to l on the last replicas of the used devices, [l', l]."""
        among = self._rates[used - replicas : used, used - replicas : used]
        computed = self._computation[replicas - 1]
        seconds = computed - computed[:, None]
        if replicas > 1:
            rate = self._efficiency * among[~np.eye(replicas, dtype=bool)].min()
            seconds += _seconds(2 * (replicas - 1) / replicas * self._bytes, rate)
        # Replicas have all parameters of their stage.
        seconds[self._too_large] = np.inf
        # Every stage has a layer.
        seconds[np.tril_indices(len(seconds))] = np.inf
        return seconds

    def _channels(self, used: int, replicas: int) -> NDArray[np.float64]:
        """Return seconds of the channel before the last stage, both ways, [l', r' - 1]."""
        start = used - replicas
        # The least rate to each number of replicas of the previous stage.
        rates = np.minimum.accumulate(self._rates[:start, start:used].min(axis=1)[::-1])
        links = replicas * np.arange(1.0, start + 1)
        return _seconds(self._crossing[:, None], links * rates)

    def _before_last(self, used: int, replicas: int) -> NDArray[np.float64]:
        """Return the least of the first two terms of W over r', [xi - 2, l']."""
        channels = self._channels(used, replicas)
        return np.maximum(self._least[used - replicas], channels).min(axis=2)


def _before(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sums of the first l values, l = 0..L."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _ranges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sums of the values from l' to l, [l', l], each accumulated separately."""
    count = len(values)
    sums = np.zeros((count + 1, count + 1))
    sums[:count, 1:] = np.triu(np.broadcast_to(values, (count, count))).cumsum(axis=1)
    return sums


def _seconds(num_bytes: NDArray[np.float64], rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return bytes over rates; 0 bytes take 0 even without a link."""
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = num_bytes / rates
    return np.where(num_bytes == 0, 0.0, seconds)


# Parameters and their gradients; the memory of slots and activations is unknown.
COPIES = 2


def check_layers_fit(layers: LayerGraph, cluster: Cluster) -> None:
    """Raise `ValueError` if a single layer exceeds the memory of every device."""
    largest = max(layers.layers, key=lambda layer: layer.parameter_bytes)
    needed = COPIES * largest.parameter_bytes
    if cluster.memory_bytes is not None and not within(needed, cluster.memory_bytes):
        raise ValueError(
            f"layer {largest.name!r} fits no device: its parameters and their gradients take"
            f" {formatting.size(needed)}, and memory_bytes of cluster is"
            f" {formatting.size(cluster.memory_bytes)}"
        )


def check_stages_fit(
    layers: LayerGraph, cluster: Cluster, strategy: str, stages: tuple[PipelineStage, ...]
) -> None:
    """Raise `ValueError` if a stage exceeds the memory of a device."""
    for number, stage in enumerate(stages):
        needed = COPIES * float(layers.parameter_bytes[stage.start : stage.stop].sum())
        if cluster.memory_bytes is not None and not within(needed, cluster.memory_bytes):
            raise ValueError(
                f"stage {number} of the plan of {strategy}, layers {stage.start} to"
                f" {stage.stop - 1}, fits no device: its parameters and their gradients take"
                f" {formatting.size(needed)}, and memory_bytes of cluster is"
                f" {formatting.size(cluster.memory_bytes)}; strategy 'spp' looks for stages that"
                " fit"
            )
