"""From what was measured of layers and links to the profile that bursts are planned by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_libra.model.cluster import Cluster
from tf_libra.model.scaling import ScalingProfile
from tf_libra.pipelines.axes import Axes
from tf_libra.pipelines.cutting import Cut
from tf_libra.pipelines.shares import Range

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Flow:
    """What goes from one layer to a later one, and back, for the whole batch.

    Attributes:
        sample_bytes: of tensors that are divided among ranks with their samples.
        other_bytes: of those that each rank needs as a whole.
    """

    sample_bytes: float = 0.0
    other_bytes: float = 0.0


Edge = tuple[int, int]


def flows(cut: Cut, axes: Axes) -> dict[Edge, Flow]:
    """By pair of layers, what flows between them; as much flows back as forward.

    Args:
        cut: the step for the whole batch, every layer a stage.
        axes: of the same trace.
    """
    found: dict[Edge, Flow] = {}
    for message in cut.messages:
        edge = (message.source, message.target)
        if message.source > message.target:
            continue  # gradients of several layers may be added up on their way
        tensor = cut.tensor(message.tensor)
        size = tensor.shape.num_elements() * tensor.dtype.size * (1 + tensor.dtype.is_floating)
        before = found.get(edge, Flow())
        if axes.of(message.tensor) is None:
            found[edge] = Flow(before.sample_bytes, before.other_bytes + size)
        else:
            found[edge] = Flow(before.sample_bytes + size, before.other_bytes)
    return dict(sorted(found.items()))


def crossing(num_layers: int, between: Mapping[Edge, Flow]) -> dict[Edge, Flow]:
    """The same of a chain: what goes further passes every layer on its way."""
    found = {(i, i + 1): Flow() for i in range(num_layers - 1)}
    for (source, target), flow in between.items():
        for i in range(source, target):
            before = found[i, i + 1]
            found[i, i + 1] = Flow(
                before.sample_bytes + flow.sample_bytes, before.other_bytes + flow.other_bytes
            )
    return found


def moved_share(sources: Sequence[int], targets: Sequence[int]) -> float:
    """The largest part of a batch that a rank sends to others, or receives from them.

    Args:
        sources: the ranks among which it is divided.
        targets: those among which it will be.
    """
    sent = dict.fromkeys(sources, 0.0)
    received = dict.fromkeys(targets, 0.0)
    unit = len(sources) * len(targets)
    for i, source in enumerate(sources):
        has = Range(i * len(targets), (i + 1) * len(targets))
        for j, target in enumerate(targets):
            size = (has & Range(j * len(sources), (j + 1) * len(sources))).size / unit
            if source != target:
                sent[source] += size
                received[target] += size
    return max(*sent.values(), *received.values())


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        device_counts: the G numbers of ranks, ascending, from 1.
        names: of the L layers.
        compute_seconds: forward and backward of the whole batch, shape [L, G].
        parameter_bytes: of each layer's trained variables, shape [L].
        all_reduce_rates: bytes per second of an all-reduce among the first g ranks, shape [G]; any
            for one rank.
        cluster: the rates between ranks.
        batch: samples of a step.
    """

    device_counts: tuple[int, ...]
    names: tuple[str, ...]
    compute_seconds: Array
    parameter_bytes: Sequence[float]
    all_reduce_rates: Sequence[float]
    cluster: Cluster
    batch: int

    def profile(self, between: Mapping[Edge, Flow]) -> ScalingProfile:
        """The profile of layers between which this flows."""
        counts = self.device_counts
        synchronize = np.outer(self.parameter_bytes, 1.0 / np.array(self.all_reduce_rates))
        synchronize[:, 0] = 0.0
        return ScalingProfile.graph(
            counts,
            self.compute_seconds,
            synchronize,
            list(between),
            [self._seconds(flow, is_moved=False) for flow in between.values()],
            [self._seconds(flow, is_moved=True) for flow in between.values()],
            self.names,
            batch=self.batch,
        )

    def _seconds(self, flow: Flow, is_moved: bool) -> Array:
        counts = self.device_counts
        seconds = np.zeros((len(counts), len(counts)))
        for row, g in enumerate(counts):
            for column, h in enumerate(counts):
                first = g if is_moved else 0
                share = moved_share(range(g), range(first, first + h))
                others = flow.other_bytes if is_moved or h > g else 0.0
                moved = share * flow.sample_bytes + others
                num_ranks = min(max(g, first + h, 2), self.cluster.num_devices)
                seconds[row, column] = moved / self.cluster.rate_among(range(num_ranks))
        return seconds
