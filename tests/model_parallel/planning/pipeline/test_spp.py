import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import between, mixed, num_examples
from tests.model_parallel.planning.pipeline import reference
from tf_libra.model_parallel.planning.pipeline import Spp
from tf_libra.model_parallel.planning.pipeline.device_ordering import device_order
from tf_libra.model_parallel.planning.pipeline.partitioning import Partitions
from tf_libra.model_parallel.planning.pipeline.spp import execution_orders

many = settings(max_examples=num_examples(300), deadline=None)
few = settings(max_examples=num_examples(60), deadline=None)
working = mixed([1.0, 2.0, 3.0, 4.0], between(1e-3, 10))


def stages_of(plan):
    return [(s.start, s.stop, s.devices) for s in plan.stages]


@many
@given(reference.layer_graphs(), reference.clusters(max_devices=5), st.integers(1, 8))
def test_is_algorithm_3(layers, cluster, M):
    plan = tf_libra.make_pipeline_plan(layers, cluster, "spp", num_microbatches=M)
    order = device_order(cluster)
    partitions = Partitions(layers, cluster, order, M)
    seconds = []
    for count in range(1, partitions.max_stages + 1):
        stages = partitions.stages(count)
        seconds.append(reference.makespan(layers, cluster, stages, execution_orders(count, M)))
    assert plan.predicted_seconds == pytest.approx(min(seconds), rel=1e-9)
    # Every device has a stage, and the prediction equals the simulator's.
    assert sorted(d for s in plan.stages for d in s.devices) == list(range(cluster.num_devices))
    assert [s.order for s in plan.stages] == execution_orders(len(plan.stages), M)
    timeline = tf_libra.simulate_pipeline(layers, plan, cluster)
    assert timeline.iteration_seconds == plan.predicted_seconds
    reference.check_timeline(layers, plan, cluster, timeline)


def check_lemma_2(layers, cluster, M):
    partitions = Partitions(layers, cluster, device_order(cluster), M)
    found = min(map(partitions.seconds, range(1, partitions.max_stages + 1)))
    best = min(
        reference.bottleneck(layers, cluster, stages, M)
        for stages in reference.all_plans(layers, cluster)
    )
    assert found <= (1 + reference.phi(layers, cluster)) * best * (1 + 1e-9)


@few
@given(
    reference.layer_graphs(max_layers=4, seconds=working), reference.clusters(), st.integers(1, 8)
)
def test_lemma_2(layers, cluster, M):
    check_lemma_2(layers, cluster, M)


def test_lemma_2_of_two_thousand_random_cases():
    rng = np.random.default_rng(0)
    for _ in range(num_examples(2000)):
        most = (4, 3) if rng.random() < 0.5 else (3, 4)
        layers, cluster = reference.drawn(rng, *most, working=True)
        check_lemma_2(layers, cluster, int(rng.integers(1, 9)))


def check_theorem_1(layers, cluster, M):
    plan = tf_libra.make_pipeline_plan(layers, cluster, "spp", num_microbatches=M)
    factor = (2 + (4 * cluster.num_devices - 4) / M) * (1 + reference.phi(layers, cluster))
    best = reference.optimum(layers, cluster, M)
    assert plan.predicted_seconds <= factor * best * (1 + 1e-9)
    assert plan.predicted_seconds >= best * (1 - 1e-9)


@few
@given(
    reference.layer_graphs(max_layers=3, seconds=working),
    reference.clusters(max_devices=3),
    st.integers(1, 3),
)
def test_theorem_1(layers, cluster, M):
    check_theorem_1(layers, cluster, M)


def test_theorem_1_of_a_thousand_random_cases():
    rng = np.random.default_rng(0)
    for _ in range(num_examples(1000)):
        layers, cluster = reference.drawn(rng, max_layers=3, max_devices=3, working=True)
        check_theorem_1(layers, cluster, int(rng.choice([1, 1, 2, 2, 3])))


def complete(count, rate=1.0):
    return tf_libra.Cluster.from_bandwidth(rate * (1 - np.eye(count)))


def uniform(count, parameters=0.0, activations=0.0):
    return tf_libra.LayerGraph.chain(
        [1.0] * count, [2.0] * count, [parameters] * count, [activations] * (count - 1)
    )


def test_one_layer_on_all_devices():
    plan = tf_libra.make_pipeline_plan(uniform(1, 6), complete(3), "spp", num_microbatches=4)
    assert stages_of(plan) == [(0, 1, plan.stages[0].devices)]
    assert plan.predicted_seconds == pytest.approx(4 * 3 / 3 + 2 * 2 / 3 * 6)


def test_one_device_has_everything():
    plan = tf_libra.make_pipeline_plan(uniform(5), complete(1), "spp", num_microbatches=4)
    assert stages_of(plan) == [(0, 5, (0,))]
    assert plan.predicted_seconds == pytest.approx(4 * 5 * 3)


def test_large_gradients_make_a_pipeline_and_small_ones_data_parallelism():
    large = tf_libra.make_pipeline_plan(
        uniform(8, 1e3, 0.1), complete(4), "spp", num_microbatches=8
    )
    assert len(large.stages) == 4
    small = tf_libra.make_pipeline_plan(
        uniform(8, 0.1, 1e3), complete(4), "spp", num_microbatches=8
    )
    assert stages_of(small) == [(0, 8, small.stages[0].devices)]


def test_slow_links_carry_activations_only():
    """With a slow link between two servers, all-reduces stay within the servers."""
    server = np.array([0, 1, 0, 1])
    rates = np.where(server[:, None] == server, 100.0, 1.0)
    plan = tf_libra.make_pipeline_plan(
        uniform(4, 50, 1), tf_libra.Cluster.from_bandwidth(rates), "spp", num_microbatches=8
    )
    assert len(plan.stages) >= 2
    for stage in plan.stages:
        assert len({server[d] for d in stage.devices}) == 1


def test_so_many_stages():
    layers, cluster = uniform(6, 1, 1), complete(4)
    for count in (1, 2, 3, 4):
        plan = tf_libra.make_pipeline_plan(
            layers, cluster, Spp(num_stages=count), num_microbatches=3
        )
        assert len(plan.stages) == count


@pytest.mark.parametrize(
    ("stages", "layers", "devices", "message"),
    [
        (4, 3, 8, "num_stages must be at most the number of layers, 3, got 4"),
        (4, 8, 3, "num_stages must be at most the number of devices, 3, got 4"),
        (0, 3, 3, "num_stages must be from 1 .* got 0"),
        (1.5, 3, 3, "num_stages must be an integer, got 1.5"),
        ("2", 3, 3, "num_stages must be an integer, got '2'"),
    ],
)
def test_stages_that_cannot_be(stages, layers, devices, message):
    with pytest.raises(ValueError, match=message):
        tf_libra.make_pipeline_plan(
            uniform(layers), complete(devices), Spp(num_stages=stages), num_microbatches=2
        )


@few
@given(
    reference.layer_graphs(max_layers=4, seconds=working),
    reference.clusters(rates=np.array([0.0, 0.0, 1.0, 9.0])),
    st.integers(1, 3),
)
def test_links_may_be_missing_wherever_a_plan_needs_none(layers, cluster, M):
    """Another order of devices may have a plan if Algorithm 2's has none."""
    bottlenecks = [
        reference.bottleneck(layers, cluster, stages, M)
        for stages in reference.all_plans(layers, cluster)
    ]
    if min(bottlenecks) < math.inf:
        plan = tf_libra.make_pipeline_plan(layers, cluster, "spp", num_microbatches=M)
        assert sorted(d for s in plan.stages for d in s.devices) == list(range(cluster.num_devices))
        assert plan.predicted_seconds < math.inf
    else:
        with pytest.raises(ValueError, match="it has no link between"):
            tf_libra.make_pipeline_plan(layers, cluster, "spp", num_microbatches=M)


def test_a_cluster_in_two_parts_is_rejected():
    rates = np.zeros((4, 4))
    rates[0, 1] = rates[1, 0] = rates[2, 3] = rates[3, 2] = 1.0
    cluster = tf_libra.Cluster.from_bandwidth(rates)
    with pytest.raises(ValueError, match="0 and 2, 0 and 3, 1 and 2, 1 and 3"):
        tf_libra.make_pipeline_plan(uniform(4, 1, 1), cluster, "spp", num_microbatches=2)
    # Without transfers, no link is needed.
    plan = tf_libra.make_pipeline_plan(uniform(4), cluster, "spp", num_microbatches=2)
    assert sorted(d for s in plan.stages for d in s.devices) == [0, 1, 2, 3]


def test_a_row_of_devices_is_a_pipeline():
    """Devices have links to their neighbours only, so replicas are adjacent."""
    count = 5
    rates = np.eye(count, k=1) + np.eye(count, k=-1)
    numbers = np.random.default_rng(0).permutation(count)
    cluster = tf_libra.Cluster.from_bandwidth(rates[np.ix_(numbers, numbers)])
    plan = tf_libra.make_pipeline_plan(uniform(6, 1, 1), cluster, "spp", num_microbatches=2)
    assert math.isfinite(plan.predicted_seconds)
    assert len(plan.stages) == count


def test_time_that_does_not_shrink_with_the_input_is_not_replicated():
    shares = (0.25, 0.5, 1)
    rows = [[1.0] * 3] * 4
    layers = tf_libra.LayerGraph.chain(rows, rows, [0] * 4, [0] * 3, input_shares=shares)
    plan = tf_libra.make_pipeline_plan(layers, complete(4), "spp", num_microbatches=8)
    assert [len(stage.devices) for stage in plan.stages] == [1, 1, 1, 1]
