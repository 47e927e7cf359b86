"""Measurement of the links between ranks, before planning."""

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
    """The rates and latencies of the links between ranks.

    Attributes:
        cluster: the rate between every two.
        latency_seconds: of a small message, in the mean over all pairs.
        sending_seconds: for which a rank that sends a message computes nothing else, in the mean.
        receiving_seconds: the same for a rank that receives a message that has arrived.
    """

    cluster: Cluster
    latency_seconds: float
    sending_seconds: float = 0.0
    receiving_seconds: float = 0.0


class AllReduces(NamedTuple):
    """All-reduces among the first ranks, by how many they are: shape [G] each.

    Attributes:
        startup_seconds: of one of nothing.
        bytes_per_second: of what comes on top; any for one rank.
    """

    startup_seconds: tuple[float, ...]
    bytes_per_second: tuple[float, ...]


def measured_links(transport: Transport, control: Control) -> LinkRates:
    """Sends between every two ranks, one pair after the other, all of which call this."""
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
    """Measures all-reduces among the first g ranks, for each g of `counts`; all ranks call this.

    Args:
        transport: reaches the other ranks.
        control: reaches the other ranks.
        counts: numbers of ranks, ascending, from 1, which all-reduces nothing.
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
        # The difference of two short times may be noise: what is sent takes a half of it at least.
        rates.append(_PROBE_BYTES / max(large - small, large / 2, 1e-9))
    return AllReduces(tuple(startups), tuple(rates))


def _handled(transport: Transport, control: Control, probe: Any) -> tuple[float, float]:
    """Seconds of a send and of a receive, neither of which waits; all ranks call this."""
    rank, count = control.rank, control.world_size
    seconds = []
    for _ in range(_REPEATS if count > 1 else 0):
        start = time.perf_counter()
        transport.send(probe, (rank + 1) % count, "probe")
        sent = time.perf_counter() - start
        control.all_gather(None)  # by then it is there
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
