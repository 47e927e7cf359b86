import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import between, mixed, num_examples
from tests.model_parallel.planning.pipeline import reference
from tf_libra.model_parallel.planning.pipeline.device_ordering import device_order, min_cut

many = settings(max_examples=num_examples(200), deadline=None)
rates = mixed([0.0], [1.0, 2.0, 3.0], between(0.1, 50))


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
    """Return True if minimum cuts divide the order, and each part of it, into successive parts."""
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


def orders_of_cuts(matrix, members):
    """Return every order that one minimum cut of each part allows, with its parts in any order."""
    if len(members) == 1:
        return [tuple(members)]
    side = min_cut(matrix[np.ix_(members, members)])
    left, other = (orders_of_cuts(matrix, np.asarray(members)[part]) for part in (side, ~side))
    return [a + b for x in left for y in other for a, b in ((x, y), (y, x))]


@many
@given(
    reference.clusters(max_devices=6, rates=rates, min_devices=2),
    st.sampled_from([1e-3, 1.0, 1e9, 1e305]),
)
def test_no_order_of_its_cuts_is_shorter(cluster, unit):
    """For any unit of rates, a missing link is longer than all existing links together."""
    matrix = cluster.rates * unit

    def length(order):
        along = [matrix[pair] for pair in itertools.pairwise(order)]
        return along.count(0), sum(1 / rate for rate in along if rate)

    found = length(device_order(tf_libra.Cluster.from_bandwidth(matrix)))
    missing, least = min(map(length, orders_of_cuts(matrix, range(len(matrix)))))
    assert found == (missing, pytest.approx(least, rel=1e-9))


def test_devices_that_are_all_alike_are_taken_by_their_numbers():
    cluster = tf_libra.Cluster.from_bandwidth(3e9 * (1 - np.eye(9)))
    assert device_order(cluster) == tuple(range(9))


@pytest.mark.parametrize("seed", range(5))
def test_servers_stay_together(seed):
    """Links within servers are two to six times faster than between them; numbers are shuffled."""
    rng = np.random.default_rng(seed)
    server = rng.permutation(np.repeat(np.arange(6), 4))
    matrix = rng.uniform(32, 40, (24, 24))
    same = server[:, None] == server
    matrix[same] = rng.uniform(96, 200, same.sum())
    matrix = np.triu(matrix, 1)
    order = device_order(tf_libra.Cluster.from_bandwidth(matrix + matrix.T))
    assert len(list(itertools.groupby(server[list(order)]))) == 6


def test_a_path_of_links_is_followed():
    """Cuts alone would also allow 1, 0, 2, 3, whose neighbours have no link."""
    links = [(2, 0), (0, 3), (3, 1)]
    matrix = np.zeros((4, 4))
    for a, b in links:
        matrix[a, b] = matrix[b, a] = 5
    order = device_order(tf_libra.Cluster.from_bandwidth(matrix))
    assert order in [(2, 0, 3, 1), (1, 3, 0, 2)]


def test_one_device():
    assert device_order(tf_libra.Cluster.from_bandwidth([[0]])) == (0,)
