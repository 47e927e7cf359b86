import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.planning.pipeline import reference
from tf_libra.planning.pipeline.rdo import device_order, min_cut

many = settings(max_examples=200, deadline=None)
rates = st.one_of(st.just(0.0), st.integers(1, 3).map(float), st.floats(0.1, 50))


def cut_of(matrix, side):
    return float(matrix[np.ix_(side, ~side)].sum())


@many
@given(reference.clusters(max_devices=7, rates=rates, min_devices=2))
def test_a_cut_is_as_small_as_that_of_networkx(cluster):
    matrix = cluster.rates
    side = min_cut(matrix)
    assert 0 < side.sum() < len(side)
    graph = nx.complete_graph(len(matrix))
    for a, b in graph.edges:
        graph.edges[a, b]["weight"] = matrix[a, b]
    least, _ = nx.stoer_wagner(graph)
    assert cut_of(matrix, side) == pytest.approx(least)


def follows_cuts(matrix, order):
    """The order can be divided by a minimum cut, and so on within each part."""
    if len(order) == 1:
        return True
    own = matrix[np.ix_(order, order)]
    least = cut_of(own, min_cut(own))
    for stop in range(1, len(order)):
        side = np.arange(len(order)) < stop
        if cut_of(own, side) <= least * (1 + 1e-9) and (
            follows_cuts(matrix, order[:stop]) and follows_cuts(matrix, order[stop:])
        ):
            return True
    return False


@many
@given(reference.clusters(max_devices=7, rates=rates))
def test_an_order_is_one_of_algorithm_2(cluster):
    order = device_order(cluster)
    assert sorted(order) == list(range(cluster.num_devices))
    assert follows_cuts(cluster.rates, list(order))


@pytest.mark.parametrize("seed", range(5))
def test_servers_stay_together(seed):
    """Links of servers are two to six times faster than those between them, numbers shuffled."""
    rng = np.random.default_rng(seed)
    server = rng.permutation(np.repeat(np.arange(6), 4))
    matrix = rng.uniform(32, 40, (24, 24))
    same = server[:, None] == server
    matrix[same] = rng.uniform(96, 200, same.sum())
    matrix = np.triu(matrix, 1)
    order = device_order(tf_libra.Cluster.from_bandwidth(matrix + matrix.T))
    assert len(list(itertools.groupby(server[list(order)]))) == 6


def test_a_path_of_links_is_followed():
    """Cuts alone would allow 1, 0, 2, 3, whose neighbours have no link."""
    links = [(2, 0), (0, 3), (3, 1)]
    matrix = np.zeros((4, 4))
    for a, b in links:
        matrix[a, b] = matrix[b, a] = 5
    order = device_order(tf_libra.Cluster.from_bandwidth(matrix))
    assert order in [(2, 0, 3, 1), (1, 3, 0, 2)]


def test_one_device():
    assert device_order(tf_libra.Cluster.from_bandwidth([[0]])) == (0,)
