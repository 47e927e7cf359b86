"""Rounds that measure links between ranks, and the links that they stand for."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.model_parallel.planning.link_rounds import make_rounds, spread_costs
from tf_libra.runtime.family_prediction import MOST_LINK_ROUNDS

HOSTS = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=20)


@given(HOSTS)
def test_every_two_hosts_meet_once_and_no_round_uses_a_host_twice(hosts: list[str]) -> None:
    rounds = make_rounds(hosts)
    met = []
    for pairs in rounds:
        used = [{hosts[rank] for rank in pair} for pair in pairs]
        assert sum(map(len, used)) == len(set.union(*used))
        met += [frozenset(pair) for pair in used]
    wanted = {frozenset(pair) for pair in itertools.combinations(set(hosts), 2)}
    wanted |= {frozenset(host) for host in hosts if hosts.count(host) > 1}
    assert len(met) == len(set(met)) and set(met) == wanted
    assert len(rounds) <= len(set(hosts)) + 1


@pytest.mark.parametrize("num_hosts", [16, 17, 18, 32, 63, 64, 200])
def test_rounds_do_not_grow_with_many_hosts(num_hosts: int) -> None:
    rounds = make_rounds(range(num_hosts))
    assert len(rounds) == min(MOST_LINK_ROUNDS, num_hosts - 1 + num_hosts % 2)
    pairs = list(itertools.chain(*rounds))
    assert len(set(pairs)) == len(pairs)
    met = np.bincount(np.ravel(pairs), minlength=num_hosts)
    assert met.min() >= len(rounds) - 1


@given(HOSTS, st.integers(0, 100))
def test_links_of_a_host_are_alike(hosts: list[str], seed: int) -> None:
    random = np.random.default_rng(seed)
    costs = {
        frozenset(pair): random.uniform(1, 2)
        for pair in itertools.combinations_with_replacement(set(hosts), 2)
    }
    measured = {
        (first, other): costs[frozenset((hosts[first], hosts[other]))]
        for first, other in itertools.chain(*make_rounds(hosts))
    }
    found = spread_costs(measured, hosts)
    for rank, other in itertools.product(range(len(hosts)), repeat=2):
        wanted = 0.0 if rank == other else costs[frozenset((hosts[rank], hosts[other]))]
        assert found[rank, other] == wanted


def test_a_link_that_is_not_measured_is_as_slow_as_its_slower_end() -> None:
    """One of 64 hosts has a slow interface."""
    slow, count = 5, 64
    rounds = make_rounds(range(count))
    measured = {pair: 8.0 if slow in pair else 1.0 for pair in itertools.chain(*rounds)}
    found = spread_costs(measured, range(count))
    unknown = [
        (rank, other)
        for rank, other in itertools.combinations(range(count), 2)
        if (rank, other) not in measured
    ]
    assert len(unknown) > count
    assert all(found[pair] == found.T[pair] == (8.0 if slow in pair else 1.0) for pair in unknown)
