"""Rates of links: of long transfers, if a token bucket lets the first bytes through, and of all."""

import collections
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from tf_libra.coordination.control_plane import Control
from tf_libra.model_parallel.planning.link_rates import LinkRates
from tf_libra.model_parallel.profiling import link_benchmark
from tf_libra.model_parallel.profiling.link_benchmark import lasting_rate, measured_links
from tf_libra.runtime.family_prediction import MOST_LINK_ROUNDS

MB = 1 << 20


@pytest.mark.parametrize("rate", [1.25e7, 1.25e8, 6.25e8, 2.5e9])
@pytest.mark.parametrize("bucket", [0, MB, 4 * MB])
@pytest.mark.parametrize("latency", [0.0, 2e-4])
def test_rate_does_not_depend_on_the_token_bucket(rate: float, bucket: int, latency: float) -> None:
    spent = []

    def seconds_of(num_bytes: int) -> float:
        spent.append(latency + max(num_bytes - bucket, 0) / rate + num_bytes / 2e10)
        return spent[-1]

    assert lasting_rate(seconds_of) == pytest.approx(rate, rel=0.2)
    assert sum(spent) < 1.5  # a slow link is not busy for long


@pytest.mark.parametrize(("longest", "rate"), [(0.04, 2 * MB / 0.04), (0.3, 2 * MB / 0.3 / 1.5)])
def test_noise_changes_the_average_by_a_limited_factor(longest: float, rate: float) -> None:
    """The longer transfer seems to take hardly more time, or much more."""
    times = iter((0.035, longest))
    assert lasting_rate(lambda _: next(times)) == pytest.approx(rate)


def test_transfers_too_short_to_measure_have_a_finite_rate() -> None:
    assert 0 < lasting_rate(lambda _: 0.0) < float("inf")


class Network:
    """Simulated ranks, with a clock each: a receiver's clock is that of the arrival at least."""

    latency = 1e-4

    def __init__(self, rates: NDArray[np.float64], is_shared: bool = False) -> None:
        self.rates, self.is_shared = rates, is_shared
        self.lock = threading.Lock()
        self.busy_until: dict[frozenset[int], float] = {}  # by link, if directions share it
        self.clocks = np.zeros(len(rates))
        self.transfers: dict[Any, queue.SimpleQueue[Any]] = collections.defaultdict(
            queue.SimpleQueue
        )
        self.messages: list[Any] = [None] * len(rates)
        self.barrier = threading.Barrier(len(rates), timeout=60)


class SimulatedRank:
    """Transport and control plane of one rank."""

    present = threading.local()

    def __init__(self, network: Network, rank: int) -> None:
        self.network, self.rank, self.world_size = network, rank, len(network.rates)
        self.present.rank = self

    @property
    def seconds(self) -> float:
        return float(self.network.clocks[self.rank])

    def send(self, tensor: Any, to_rank: int, name: str) -> None:
        network, link = self.network, frozenset((self.rank, to_rank))
        seconds = np.asarray(tensor).nbytes / network.rates[self.rank, to_rank]
        with network.lock:
            start = self.seconds
            if network.is_shared:
                start = max(start, network.busy_until.get(link, 0.0))
                network.busy_until[link] = start + seconds
        arrival = start + seconds + network.latency
        network.transfers[self.rank, to_rank, name].put((arrival, tensor))

    def receive(self, dtype: Any, shape: Sequence[int], from_rank: int, name: str) -> Any:
        arrival, tensor = self.network.transfers[from_rank, self.rank, name].get(timeout=60)
        self.network.clocks[self.rank] = max(self.seconds, arrival)
        return tensor

    def all_gather(self, message: Any) -> list[Any]:
        self.network.messages[self.rank] = message
        self.network.barrier.wait()
        everyone, latest = list(self.network.messages), self.network.clocks.max()
        self.network.barrier.wait()
        self.network.clocks[self.rank] = latest
        return everyone


def measure_together(monkeypatch: pytest.MonkeyPatch, network: Network, hosts: Any) -> LinkRates:
    """Returns the links that all ranks measure."""
    present = SimulatedRank.present

    def clock() -> float:
        return float(present.rank.seconds)

    monkeypatch.setattr(link_benchmark, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(link_benchmark, "host_identity", lambda: str(hosts[present.rank.rank]))
    # Takes no memory.
    monkeypatch.setattr(
        link_benchmark, "_probe", lambda num_bytes: np.broadcast_to(np.float32(0), [num_bytes // 4])
    )

    def measure(rank: int) -> LinkRates:
        simulated = cast(Any, SimulatedRank(network, rank))
        return measured_links(simulated, cast(Control, simulated))

    with ThreadPoolExecutor(len(network.rates)) as threads:
        first, *others = threads.map(measure, range(len(network.rates)))
    assert all(links == first for links in others)
    return first


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("back", [2e8, 1e8])
def test_rates_are_those_of_the_slower_direction_and_of_both_at_once(
    monkeypatch: pytest.MonkeyPatch, is_shared: bool, back: float
) -> None:
    """Directions share what carries both, such as a core or a radio link."""
    rates = np.array([[0.0, 2e8], [back, 0.0]])
    links = measure_together(monkeypatch, Network(rates, is_shared), np.arange(2))
    both = 1 / (1 / 2e8 + 1 / back) if is_shared else back
    assert links.cluster.rates[0, 1] == pytest.approx(back, rel=0.02)
    assert links.for_both_ways().rates[0, 1] == pytest.approx(both, rel=0.02)


@pytest.mark.parametrize(
    ("num_hosts", "per_host"), [(1, 1), (1, 3), (2, 1), (3, 1), (3, 2), (16, 1), (8, 4), (64, 1)]
)
def test_all_ranks_measure_rates_of_all_links(
    monkeypatch: pytest.MonkeyPatch, num_hosts: int, per_host: int
) -> None:
    """Hosts have interfaces of different rates. The time of many hosts is limited."""
    hosts = np.arange(num_hosts * per_host) % num_hosts
    interfaces = np.random.default_rng(num_hosts).uniform(2e8, 1e9, num_hosts)[hosts]
    rates = np.minimum.outer(interfaces, interfaces)
    rates[hosts[:, None] == hosts] = 5e9
    network = Network(rates)
    first = measure_together(monkeypatch, network, hosts)
    np.testing.assert_allclose(first.for_both_ways().rates, first.cluster.rates, rtol=0.03)
    np.fill_diagonal(rates, 0.0)
    off_by = np.abs(first.cluster.rates - rates) / np.maximum(rates, 1.0)
    assert off_by[rates == 5e9].max(initial=0.0) < 0.03
    if num_hosts <= MOST_LINK_ROUNDS:
        assert off_by.max() < 0.03
    else:  # others are as fast as their ends are known to be
        assert np.quantile(off_by, 0.9) < 0.03
    assert first.latency_seconds == pytest.approx(network.latency * (len(rates) > 1), rel=1e-3)
    assert network.clocks.max() <= 1.0 * (MOST_LINK_ROUNDS + 1)
