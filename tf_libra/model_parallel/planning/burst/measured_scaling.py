"""Scaling profiles of burst planners, from costs of layers and links."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_libra.model_parallel.partition.batch_sharding import ExampleRange
from tf_libra.model_parallel.planning.link_rates import AllReduces, LinkRates
from tf_libra.specs.scaling_profile import ScalingProfile

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ActivationFlow:
    """Tensors of the whole batch that flow between two layers, forward and backward.

    Attributes:
        sample_bytes: bytes of tensors that are divided among ranks by examples.
        other_bytes: bytes of tensors that each rank needs as a whole.
        num_messages: number of tensors, both ways.
    """

    sample_bytes: float = 0.0
    other_bytes: float = 0.0
    num_messages: int = 0

    def __add__(self, other: "ActivationFlow") -> "ActivationFlow":
        """Return the sum of two flows."""
        return ActivationFlow(
            self.sample_bytes + other.sample_bytes,
            self.other_bytes + other.other_bytes,
            self.num_messages + other.num_messages,
        )


Edge = tuple[int, int]


def crossing(num_layers: int, between: Mapping[Edge, ActivationFlow]) -> dict[Edge, ActivationFlow]:
    """Return the flows of a chain: a flow to a later layer passes every layer in between."""
    found = {(i, i + 1): ActivationFlow() for i in range(num_layers - 1)}
    for (source, target), flow in between.items():
        for i in range(source, target):
            found[i, i + 1] += flow
    return found


def at_counts(measured: Mapping[int, Array], counts: Sequence[int]) -> Array:
    """Return the seconds of layers at numbers of ranks, shape [L, G].

    Between measured numbers of ranks, time is linear in a rank's share of the batch.

    Args:
        measured: seconds of the L layers by number of ranks.
        counts: the G numbers of ranks, between the least and the largest measured one.
    """
    known = sorted(measured, reverse=True)  # shares ascend
    shares = 1.0 / np.array(known)
    by_layer = np.stack([measured[count] for count in known], axis=1)
    return np.stack([np.interp(1.0 / np.array(counts), shares, layer) for layer in by_layer])


def moved_share(sources: Sequence[int], targets: Sequence[int]) -> float:
    """Return the largest share of a batch that a rank sends to or receives from other ranks.

    Args:
        sources: ranks among which the batch is divided before the move.
        targets: ranks among which the batch is divided after the move.
    """
    return _busiest(sources, targets, lambda share: share)


def num_partners(sources: Sequence[int], targets: Sequence[int]) -> int:
    """Return the largest number of ranks that a rank sends examples to or receives examples from.

    Args:
        sources: ranks among which the batch is divided before the move.
        targets: ranks among which the batch is divided after the move.
    """
    return round(_busiest(sources, targets, lambda share: float(share > 0)))


def _busiest(
    sources: Sequence[int], targets: Sequence[int], cost: Callable[[float], float]
) -> float:
    """Return the largest cost of the shares of a batch that any rank sends or receives."""
    sent = dict.fromkeys(sources, 0.0)
    received = dict.fromkeys(targets, 0.0)
    unit = len(sources) * len(targets)
    for i, source in enumerate(sources):
        has = ExampleRange(i * len(targets), (i + 1) * len(targets))
        for j, target in enumerate(targets):
            share = (has & ExampleRange(j * len(sources), (j + 1) * len(sources))).size / unit
            if source != target:
                sent[source] += cost(share)
                received[target] += cost(share)
    return max(*sent.values(), *received.values())


@functools.cache
def _moved(num_sources: int, first_target: int, num_targets: int) -> tuple[float, int]:
    """Return `moved_share` and `num_partners` from the first ranks to consecutive ones.

    They are the same for all flows.
    """
    sources, targets = range(num_sources), range(first_target, first_target + num_targets)
    return moved_share(sources, targets), num_partners(sources, targets)


@dataclass(frozen=True)
class MeasuredScaling:
    """Measurements from which scaling profiles are computed.

    Attributes:
        device_counts: the G numbers of ranks, ascending, from 1.
        names: names of the L layers.
        compute_seconds: forward and backward seconds of the whole batch, shape [L, G].
        parameter_bytes: bytes of each layer's trained variables, shape [L].
        all_reduces: costs of all-reduces among the first g ranks, for each g.
        links: rates between ranks and costs of an empty message.
        batch: examples per step.
        stage_startup: forward and backward seconds that the calls of one more stage add.
    """

    device_counts: tuple[int, ...]
    names: tuple[str, ...]
    compute_seconds: Array
    parameter_bytes: Sequence[float]
    all_reduces: AllReduces
    links: LinkRates
    batch: int
    stage_startup: float

    def profile(self, between: Mapping[Edge, ActivationFlow]) -> ScalingProfile:
        """Return the profile of the layers with the given flows between them.

        Layers on the same ranks share all-reduces: the startup of one all-reduce is divided among
        them by bytes. A change of the number of ranks adds the startup of one more all-reduce.
        """
        counts = self.device_counts
        num_bytes = np.array(self.parameter_bytes)
        share = num_bytes / max(num_bytes.sum(), 1.0)
        synchronize = np.outer(num_bytes, 1.0 / np.array(self.all_reduces.bytes_per_second))
        synchronize += np.outer(share, self.all_reduces.startup_seconds)
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

    def _seconds(self, flow: ActivationFlow, is_moved: bool) -> Array:
        counts = self.device_counts
        seconds = np.zeros((len(counts), len(counts)))
        for row, g in enumerate(counts):
            for column, h in enumerate(counts):
                first = g if is_moved else 0
                share, partners = _moved(g, first, h)
                others = flow.other_bytes if is_moved or h > g else 0.0
                moved = share * flow.sample_bytes + others
                num_ranks = min(max(g, first + h, 2), self.links.cluster.num_devices)
                seconds[row, column] = moved / self.links.cluster.rate_among(range(num_ranks))
                if is_moved or g != h:
                    seconds[row, column] += (
                        flow.num_messages * partners * self.links.latency_seconds
                        + self.stage_startup
                        + (self.all_reduces.startup_seconds[column] if h > 1 else 0.0)
                    )
        return seconds
