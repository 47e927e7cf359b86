import json
import math
from dataclasses import replace

import numpy as np
import pytest

import tf_libra

RATES = [[0, 3, 1], [3, 0, 2], [1, 2, 0]]


def test_rates_ignore_the_diagonal():
    own = np.array(RATES, float) + np.diag([7.0, math.inf, 0])
    cluster = tf_libra.Cluster.from_bandwidth(own)
    assert cluster.num_devices == 3
    np.testing.assert_array_equal(cluster.rates, RATES)


def test_rate_between_sets_is_the_slowest_link():
    cluster = tf_libra.Cluster.from_bandwidth(RATES)
    assert cluster.rate_between([0, 1], [2]) == 1
    assert cluster.rate_between([1], [0, 2]) == 2
    assert cluster.rate_among([0, 1, 2]) == 1
    assert cluster.rate_among([1, 2]) == 2
    assert cluster.rate_among([1]) == math.inf
    assert cluster.all_reduce_rate([0, 1, 2]) == 1
    assert replace(cluster, all_reduce_efficiency=0.5).all_reduce_rate([1, 2]) == 1


def test_json_round_trip_is_identical():
    for nodes in (None, [0, 0, 5]):
        cluster = tf_libra.Cluster.from_bandwidth(RATES, nodes)
        assert tf_libra.Cluster.from_json(cluster.to_json()) == cluster
    limited = tf_libra.Cluster.from_bandwidth(RATES, memory_bytes=5e9)
    assert tf_libra.Cluster.from_json(limited.to_json()) == limited
    assert limited.memory_bytes == 5e9
    slower = replace(limited, all_reduce_efficiency=0.5)
    assert tf_libra.Cluster.from_json(slower.to_json()) == slower != limited


@pytest.mark.parametrize("efficiency", [0.0, -1.0, math.inf])
def test_efficiency_is_positive(efficiency):
    with pytest.raises(ValueError, match="all_reduce_efficiency"):
        tf_libra.Cluster(((0.0,),), all_reduce_efficiency=efficiency)


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ([], "at least one device"),
        ([[0, 1], [1]], "square: row 1 must have 2 entries, got 1"),
        ([[0, 1, 2], [1, 0, 2]], "square: row 0 must have 2 entries, got 3"),
        ([[0, 1], [2, 0]], r"symmetric: \[1\]\[0\] is 2.0, \[0\]\[1\] is 1.0"),
        ([[0, -1], [-1, 0]], r"bytes_per_second\[0\]\[1\] must be at least 0, got -1"),
        ([[0, math.nan], [math.nan, 0]], r"bytes_per_second\[0\]\[1\] must be a finite number"),
        ([[0, math.inf], [math.inf, 0]], r"bytes_per_second\[0\]\[1\] must be a finite number"),
        (5.0, "bytes_per_second must be a list"),
        ([1.0, 2.0], r"bytes_per_second\[0\] must be a list"),
    ],
)
def test_wrong_rates_are_rejected(rates, message):
    with pytest.raises(ValueError, match=message):
        tf_libra.Cluster.from_bandwidth(rates)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([0, 1], "nodes must have one entry per device: 3, got 2"),
        ([0, 1, -1], r"nodes\[2\] must be from 0"),
        (3, "nodes must be a list, got 3"),
        ("abc", "nodes must be a list, got 'abc'"),
    ],
)
def test_wrong_nodes_are_rejected(nodes, message):
    with pytest.raises(ValueError, match=message):
        tf_libra.Cluster.from_bandwidth(RATES, nodes)


@pytest.mark.parametrize("memory", [0, -1.0, math.nan, math.inf, "much"])
def test_wrong_memory_is_rejected(memory):
    with pytest.raises(ValueError, match=r"memory_bytes must be"):
        tf_libra.Cluster.from_bandwidth(RATES, memory_bytes=memory)


def test_wrong_json_is_rejected():
    value = json.loads(tf_libra.Cluster.from_bandwidth(RATES).to_json()) | {"version": 3}
    with pytest.raises(ValueError, match=r"version.*1,.*3"):
        tf_libra.Cluster.from_json(json.dumps(value))
