"""Benchmark of the links between ranks, which provides the planners' rates and latencies."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_libra.coordination.control_plane import Control
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.specs.cluster import Cluster

_REPEATS = 3
_PROBE_BYTES = 1 << 20


@dataclass(frozen=True)
class LinkRates:
    """Rates and latencies of the links between ranks.

    Attributes:
        cluster: rates between all pairs of ranks.
        latency_seconds: latency of a small message, mean over all pairs.
        sending_seconds: seconds for which sending a message occupies a rank, mean over all ranks.
        receiving_seconds: the same for receiving a message that has arrived.
    """

    cluster: Cluster
    latency_seconds: float
    sending_seconds: float = 0.0
    receiving_seconds: float = 0.0


class AllReduces(NamedTuple):
    """Costs of all-reduces among the first g ranks, by g; shape [G] each.

    Attributes:
        startup_seconds: seconds of an all-reduce without payload.
        bytes_per_second: rate of the payload; arbitrary for one rank.
    """

    startup_seconds: tuple[float, ...]
    bytes_per_second: tuple[float, ...]


def measured_links(transport: Transport, control: Control) -> LinkRates:
    """Measure each pair of ranks in turn by round trips; all ranks call this."""
    rates = np.zeros([control.world_size] * 2)
    large, small = tf.zeros([_PROBE_BYTES // 4]), tf.zeros([1])
    latencies = []
    for one, other in itertools.combinations(range(control.world_size), 2):
        seconds = [0.0, 0.0]
        if control.rank in (one, other):
            peer = other if control.rank == one else one
            seconds = [
                min(
                    _round_trip(transport, probe, peer, is_first=control.rank == one)
                    for _ in range(_REPEATS)
                )
                for probe in (large, small)
            ]
        of_large, of_small = control.all_gather(seconds)[one]
        rates[one, other] = rates[other, one] = 2 * _PROBE_BYTES / max(of_large, 1e-9)
        latencies.append(of_small / 2)
    handled = _handled(transport, control, small)
    return LinkRates(Cluster.from_bandwidth(rates), float(np.mean(latencies or 0.0)), *handled)


def measured_all_reduces(
    transport: Transport, control: Control, counts: Sequence[int]
) -> AllReduces:
    """Measure all-reduces among the first g ranks, for each g of `counts`; all ranks call this.

    Args:
        transport: connections to the other ranks.
        control: control channel to the other ranks.
        counts: ascending numbers of ranks; the first is 1 and needs no measurement.
    """
    startups, rates = [0.0], [1.0]
    probes = tf.zeros([1]), tf.zeros([_PROBE_BYTES // 4])
    for count in counts[1:]:
        seconds = [0.0, 0.0]
        if control.rank < count:
            seconds = [
                min(_all_reduce(transport, probe, count) for _ in range(_REPEATS))
                for probe in probes
            ]
        small, large = map(max, zip(*control.all_gather(seconds), strict=True))
        startups.append(small)
        # The difference of two short times may be noise: the payload takes at least half.
        rates.append(_PROBE_BYTES / max(large - small, large / 2, 1e-9))
    return AllReduces(tuple(startups), tuple(rates))


def _handled(transport: Transport, control: Control, probe: Any) -> tuple[float, float]:
    """Return the seconds of a send and of a receive that do not wait; all ranks call this."""
    rank, count = control.rank, control.world_size
    seconds = []
    for _ in range(_REPEATS if count > 1 else 0):
        start = time.perf_counter()
        transport.send(probe, (rank + 1) % count, "probe")
        sent = time.perf_counter() - start
        control.all_gather(None)  # the message has arrived afterwards
        start = time.perf_counter()
        transport.receive(probe.dtype, probe.shape, (rank - 1) % count, "probe")
        seconds.append((sent, time.perf_counter() - start))
    everyone = control.all_gather(np.median(seconds or [(0.0, 0.0)], axis=0).tolist())
    sending, receiving = np.mean(everyone, axis=0)
    return float(sending), float(receiving)


def _round_trip(transport: Transport, probe: Any, peer: int, is_first: bool) -> float:
    start = time.perf_counter()
    if is_first:
        transport.send(probe, peer, "probe")
    transport.receive(probe.dtype, probe.shape, peer, "probe")
    if not is_first:
        transport.send(probe, peer, "probe")
    return time.perf_counter() - start


def _all_reduce(transport: Transport, probe: Any, count: int) -> float:
    start = time.perf_counter()
    transport.all_reduce(probe, range(count), "probe")
    return time.perf_counter() - start
