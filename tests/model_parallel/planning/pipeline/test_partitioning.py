import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import between, mixed, num_examples
from tests.model_parallel.planning.pipeline import reference
from tf_libra.model_parallel.planning.pipeline.device_ordering import device_order
from tf_libra.model_parallel.planning.pipeline.partitioning import Partitions

many = settings(max_examples=num_examples(300), deadline=None)
sparse = mixed([0.0], between(0.5, 50))


def brute_force(layers, cluster, order, M, num_stages):
    count = len(layers.layers)
    return min(
        reference.bottleneck(
            layers, cluster, [(a, b, s) for (a, b), s in zip(ranges, sets, strict=True)], M
        )
        for ranges in reference.partitions(count, num_stages)
        for sets in reference.replications(order, num_stages)
    )


def check(layers, cluster, order, M):
    partitions = Partitions(layers, cluster, order, M)
    assert partitions.max_stages == min(len(layers.layers), len(order))
    for num_stages in range(1, partitions.max_stages + 1):
        least = brute_force(layers, cluster, order, M, num_stages)
        assert partitions.seconds(num_stages) == pytest.approx(least, rel=1e-9, abs=1e-12)
        stages = partitions.stages(num_stages)
        if math.isinf(least):
            assert stages is None
            continue
        assert len(stages) == num_stages
        assert [d for *_, devices in stages for d in devices] == list(order)
        bottleneck = reference.bottleneck(layers, cluster, stages, M)
        assert bottleneck == pytest.approx(least, rel=1e-9, abs=1e-12)


@many
@given(reference.layer_graphs(), reference.clusters(max_devices=5), st.integers(1, 6))
def test_is_the_optimum_in_the_order_of_devices(layers, cluster, M):
    check(layers, cluster, device_order(cluster), M)


@many
@given(st.data(), reference.layer_graphs(), reference.clusters(rates=sparse), st.integers(1, 3))
def test_missing_links_are_infinite(data, layers, cluster, M):
    check(layers, cluster, data.draw(st.permutations(range(cluster.num_devices))), M)


@many
@given(
    reference.layer_graphs(shares=True),
    reference.clusters(efficiencies=(1.0, 0.25)),
    st.integers(1, 3),
)
def test_replication_that_is_not_linear(layers, cluster, M):
    check(layers, cluster, device_order(cluster), M)


def test_among_equal_ones_the_first_of_algorithm_4():
    """W is 4 with one replica of the last stage, which gets as many layers as fit."""
    layers = tf_libra.LayerGraph.chain([1, 1, 1, 1], [0] * 4, [0] * 4, [0] * 3)
    cluster = tf_libra.Cluster.from_bandwidth([[0, 1], [1, 0]])
    assert Partitions(layers, cluster, (0, 1), 2).stages(2) == [(0, 2, (0,)), (2, 4, (1,))]
    uneven = tf_libra.LayerGraph.chain([4, 1, 1, 1], [0] * 4, [0] * 4, [0] * 3)
    assert Partitions(uneven, cluster, (0, 1), 2).stages(2) == [(0, 1, (0,)), (1, 4, (1,))]


LAYERS = tf_libra.LayerGraph.chain(
    [1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [3e9, 1e9, 2e9], [1e6, 1e6], ["table", "block", "head"]
)
RATES = 1e9 * (1 - np.eye(2))


def cluster(memory_bytes):
    return tf_libra.Cluster.from_bandwidth(RATES, memory_bytes=memory_bytes)


@settings(max_examples=num_examples(200), deadline=None)
@given(st.data(), reference.layer_graphs(), reference.clusters(), st.integers(1, 3))
def test_is_the_optimum_of_the_plans_that_fit(data, layers, cluster, M):
    """Brute force over partitions and replications omits plans that do not fit."""
    total = sum(layer.parameter_bytes for layer in layers.layers)
    share = data.draw(st.floats(0.1, 2.5))
    limit = max(share * total, 1.0) * (1 + 1e-9)  # rounding of sums does not matter
    limited = dataclasses.replace(cluster, memory_bytes=limit)
    order = device_order(cluster)
    partitions = Partitions(layers, limited, order, M)
    for count in range(1, partitions.max_stages + 1):
        fitting = [
            reference.bottleneck(
                layers, cluster, [(a, b, s) for (a, b), s in zip(ranges, sets, strict=True)], M
            )
            for ranges in reference.partitions(len(layers.layers), count)
            for sets in reference.replications(order, count)
            if all(2 * layers.parameter_bytes[a:b].sum() <= limit for a, b in ranges)
        ]
        least = min(fitting, default=np.inf)
        assert partitions.seconds(count) == pytest.approx(least, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", ["spp", "gpipe", "pipedream", "hetpipe", "data-parallel"])
def test_a_layer_that_fits_no_device_is_named(name):
    with pytest.raises(ValueError, match=r"'table'.* 6 GB, .* 5 GB"):
        tf_libra.make_pipeline_plan(LAYERS, cluster(5e9), name, num_microbatches=2)


def test_search_finds_stages_that_fit():
    plan = tf_libra.make_pipeline_plan(LAYERS, cluster(6e9), "spp", num_microbatches=2)
    assert [(stage.start, stage.stop) for stage in plan.stages] == [(0, 1), (1, 3)]
    free = tf_libra.make_pipeline_plan(LAYERS, cluster(12e9), "spp", num_microbatches=2)
    unlimited = tf_libra.make_pipeline_plan(LAYERS, cluster(None), "spp", num_microbatches=2)
    assert free == unlimited


def test_memory_that_no_plan_fits_is_rejected():
    with pytest.raises(ValueError, match=r"2 devices.*1 stages.*6 GB"):
        tf_libra.make_pipeline_plan(
            LAYERS, cluster(6e9), tf_libra.strategies.Spp(num_stages=1), num_microbatches=2
        )
    with pytest.raises(ValueError, match=r"stage 0.*0.*2"):
        tf_libra.make_pipeline_plan(LAYERS, cluster(6e9), "data-parallel", num_microbatches=2)
