"""Benchmark of the links between ranks, which provides the planners' rates and latencies."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from tf_libra.coordination.control_plane import Control
from tf_libra.coordination.world import host_identity
from tf_libra.internal.process_state import STATE, OnReset
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.planning import link_rounds
from tf_libra.model_parallel.planning.link_rates import AllReduces, LinkRates
from tf_libra.specs.cluster import Cluster

_REPEATS = 3
_TRIPS = 2  # in each direction, and in both
# Sizes of transfers whose rate is measured. They double until a transfer takes long enough: links
# whose rate a token bucket limits let the first megabytes through at a higher rate.
_FIRST_BYTES, _MOST_BYTES = 1 << 20, 1 << 25
_LONG_ENOUGH = 0.04
# Largest plausible ratio of the average rate of the longest transfer to the rate that lasts.
_MAX_BUCKET_GAIN = 1.5


def links_of_job(transport: Transport, control: Control) -> LinkRates:
    """Return the links between ranks, which are measured once; all ranks call this.

    The first call of a job measures them, and the first one after `forget_links`.

    Args:
        transport: connections to the other ranks.
        control: control channel to the other ranks.
    """
    job = (control.job, control.rank, control.world_size)
    if job not in _known_links():
        links = measured_links(transport, control)  # on all ranks, or on none
        _known_links().clear()
        _known_links()[job] = links
    return _known_links()[job]


def forget_links() -> None:
    """Lets the next plan of this process measure links again; all ranks call this."""
    _known_links().clear()


@STATE.value(on_reset=OnReset.DISCARD)
def _known_links() -> dict[tuple[int, int, int], LinkRates]:
    """Returns the links of this process's job; empty before they are measured."""
    return {}


def measured_links(transport: Transport, control: Control) -> LinkRates:
    """Measure links in each direction and in both, in rounds of pairs; see `links_of_job`."""
    hosts = [name or str(rank) for rank, name in enumerate(control.all_gather(host_identity()))]
    found: dict[link_rounds.Pair, tuple[float, float, float]] = {}
    for pairs in link_rounds.make_rounds(hosts):
        peers = dict(pairs) | {other: first for first, other in pairs}
        peer = peers.get(control.rank)
        mine = None if peer is None else _measured_link(transport, control.rank, peer)
        everyone = control.all_gather(mine)
        found |= {pair: everyone[pair[0]] for pair in pairs}
    latencies, *byte_seconds = (
        link_rounds.spread_costs({pair: costs[i] for pair, costs in found.items()}, hosts)
        for i in range(3)
    )
    rates, both = (
        np.divide(1.0, each, out=np.zeros_like(each), where=each > 0) for each in byte_seconds
    )
    num_links = max(np.count_nonzero(rates), 1)
    return LinkRates(
        Cluster.from_bandwidth(rates),
        float(latencies.sum() / num_links),
        *_handled(transport, control, _probe(4)),
        Cluster.from_bandwidth(np.minimum(rates, both)),
    )


def _measured_link(transport: Transport, rank: int, peer: int) -> tuple[float, float, float]:
    """Return the seconds of an empty message, and of a byte in one direction and in both.

    They are the same on both ranks: those of the slower direction.
    """
    is_first, empty = rank < peer, _probe(4)

    def slowest(seconds: Sequence[float]) -> float:
        """Return the shortest of repetitions, each of which takes as long as on the slower rank."""
        mine = tf.constant(seconds, tf.float64)
        transport.send(mine, peer, "probe seconds")
        theirs = transport.receive(mine.dtype, mine.shape, peer, "probe seconds")
        return float(tf.reduce_min(tf.maximum(mine, theirs)))

    def round_trip(num_bytes: int, sends: bool) -> float:
        """Return the seconds until an empty answer; 0 on the rank that answers."""
        probe = _probe(num_bytes)
        trips = [_round_trip(transport, probe, empty, peer, sends) for _ in range(_TRIPS)]
        return min(trips) if sends else 0.0

    def one_way(num_bytes: int) -> float:
        seconds = slowest(
            [sum(round_trip(num_bytes, sends is is_first) for sends in (True, False))]
        )
        return max(seconds - latency, seconds / 2)

    def both_ways(num_bytes: int) -> float:
        probe, seconds = _probe(num_bytes), []
        for _ in range(_TRIPS):
            _exchange(transport, empty, peer)  # a common start
            seconds.append(_exchange(transport, probe, peer))
        return slowest(seconds)

    latency = 0.0
    latency = one_way(4) / 2
    return latency, 1 / lasting_rate(one_way), 1 / lasting_rate(both_ways)


def with_measured_all_reduce(cluster: Cluster, transport: Transport, control: Control) -> Cluster:
    """Return a cluster with the efficiency of an all-reduce among all its devices.

    It stands for those among fewer devices, too. Where only some devices share a host, these reach
    another share of their faster links.

    Args:
        cluster: measured rates; one device per rank.
        transport: connections to the other ranks.
        control: control channel to the other ranks; all ranks call this.
    """
    count = cluster.num_devices
    if count == 1:
        return cluster
    rate = measured_all_reduces(transport, control, (1, count)).bytes_per_second[-1]
    # A ring sends 2(N-1)/N of the payload (SPP, Eq. 1).
    sent = 2 * (count - 1) / count * rate
    return replace(cluster, all_reduce_efficiency=sent / cluster.rate_among(range(count)))


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
    for count in counts[1:]:

        def slowest(num_bytes: int, count: int = count) -> float:
            """Return the seconds of the slowest rank, the same on every rank."""
            seconds = 0.0
            if control.rank < count:
                probe = _probe(num_bytes)
                seconds = min(_all_reduce(transport, probe, count) for _ in range(_REPEATS))
            return float(max(control.all_gather(seconds)))

        startup = slowest(4)

        def payload(
            num_bytes: int,
            slowest: Callable[[int], float] = slowest,
            startup: float = startup,
        ) -> float:
            """Return the seconds of the payload alone."""
            seconds = slowest(num_bytes)
            # The difference of two short times may be noise: the payload takes at least half.
            return max(seconds - startup, seconds / 2)

        startups.append(startup)
        rates.append(lasting_rate(payload))
    return AllReduces(tuple(startups), tuple(rates))


def lasting_rate(seconds_of: Callable[[int], float]) -> float:
    """Return the bytes per second that long transfers have.

    Args:
        seconds_of: measures a transfer of a number of bytes.
    """
    num_bytes = _FIRST_BYTES
    seconds, shorter_seconds = seconds_of(num_bytes), 0.0
    while min(seconds, 4 * shorter_seconds) < _LONG_ENOUGH and num_bytes < _MOST_BYTES:
        num_bytes, shorter_seconds = 2 * num_bytes, seconds
        seconds = seconds_of(num_bytes)
    average = num_bytes / max(seconds, 1e-9)
    # Both transfers begin with what a token bucket holds, so the second half has the rate that
    # lasts. A larger difference between the halves is noise.
    second_half = num_bytes / 2 / max(seconds - shorter_seconds, 1e-9)
    return max(min(average, second_half), average / _MAX_BUCKET_GAIN)


def _probe(num_bytes: int) -> Any:
    return tf.zeros([num_bytes // 4])


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


def _round_trip(transport: Transport, probe: Any, answer: Any, peer: int, sends: bool) -> float:
    start = time.perf_counter()
    if sends:
        transport.send(probe, peer, "probe")
        transport.receive(answer.dtype, answer.shape, peer, "answer")
    else:
        transport.receive(probe.dtype, probe.shape, peer, "probe")
        transport.send(answer, peer, "answer")
    return time.perf_counter() - start


def _exchange(transport: Transport, probe: Any, peer: int) -> float:
    start = time.perf_counter()
    transport.send(probe, peer, "probe")
    transport.receive(probe.dtype, probe.shape, peer, "probe")
    return time.perf_counter() - start


def _all_reduce(transport: Transport, probe: Any, count: int) -> float:
    start = time.perf_counter()
    transport.all_reduce(probe, range(count), "probe")
    return time.perf_counter() - start
