"""Rates and latencies of links between ranks, and costs of all-reduces, as planners take them."""

from dataclasses import dataclass
from typing import NamedTuple

from tf_libra.specs.cluster import Cluster


@dataclass(frozen=True)
class LinkRates:
    """Rates and latencies of the links between ranks.

    Attributes:
        cluster: rates between all pairs of ranks.
        both_ways: rates while as much is sent in the other direction, at most those of `cluster`;
            None: the same.
        latency_seconds: latency of a small message, mean over all pairs.
        sending_seconds: seconds for which sending a message occupies a rank, mean over all ranks.
        receiving_seconds: the same for receiving a message that has arrived.
    """

    cluster: Cluster
    latency_seconds: float
    sending_seconds: float = 0.0
    receiving_seconds: float = 0.0
    both_ways: Cluster | None = None

    def for_both_ways(self) -> Cluster:
        """Returns the rates for plans that send in both directions at a time."""
        return self.cluster if self.both_ways is None else self.both_ways


class AllReduces(NamedTuple):
    """Costs of all-reduces among the first g ranks, by g; shape [G] each.

    Attributes:
        startup_seconds: seconds of an all-reduce without payload.
        bytes_per_second: rate of the payload; arbitrary for one rank.
    """

    startup_seconds: tuple[float, ...]
    bytes_per_second: tuple[float, ...]
