import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import fractions, num_examples, pick
from tests.model_parallel.planning.pipeline import reference
from tf_libra.model_parallel.planning.pipeline.spp import execution_orders
from tf_libra.model_parallel.simulation.pipeline import least_iteration_seconds

many = settings(max_examples=num_examples(200), deadline=None)


@st.composite
def plans(draw, layers, cluster):
    """Any stages on any devices, in any order that waits for nothing that waits for it."""
    choices = iter(fractions(draw, 6))
    drawn = fractions(draw, cluster.num_devices + 4)
    M = pick(range(1, 5), next(choices))
    count = pick(range(1, min(len(layers.layers), cluster.num_devices) + 1), next(choices))
    ranges = pick(list(reference.partitions(len(layers.layers), count)), next(choices))
    devices = np.argsort(drawn[4:], kind="stable").tolist()
    used = pick(range(count, cluster.num_devices + 1), next(choices))
    sets = pick(list(reference.replications(devices[:used], count)), next(choices))
    stages = [(a, b, s) for (a, b), s in zip(ranges, sets, strict=True)]
    orders = execution_orders(count, M)
    if next(choices) >= 0.5:
        numbers = np.argsort(drawn[:M], kind="stable").tolist()
        forward = [("forward", m) for m in numbers]
        orders = [tuple(forward + [("backward", m) for m in reversed(numbers)])] * count
    return reference.plan_of(layers, cluster, stages, orders)


@many
@given(st.data(), reference.layer_graphs(), reference.clusters())
def test_blocks_keep_all_conventions(data, layers, cluster):
    plan = data.draw(plans(layers, cluster))
    timeline = tf_libra.simulate_pipeline(layers, plan, cluster)
    reference.check_timeline(layers, plan, cluster, timeline)


@many
@given(
    st.data(),
    reference.layer_graphs(),
    reference.clusters(efficiencies=(1.0, 0.25)),
    st.integers(1, 3),
)
def test_time_is_that_of_the_dependencies(data, layers, cluster, M):
    stages = data.draw(st.sampled_from(list(reference.all_plans(layers, cluster))))
    orders = execution_orders(len(stages), M)
    plan = reference.plan_of(layers, cluster, stages, orders)
    seconds = tf_libra.simulate_pipeline(layers, plan, cluster).iteration_seconds
    assert seconds == pytest.approx(reference.makespan(layers, cluster, stages, orders), rel=1e-9)


def test_figure_2():
    """Six layers on four devices, the second of three stages on two of them; by hand."""
    layers = tf_libra.LayerGraph.chain(
        [1, 1, 2, 2, 1, 1], [1, 1, 2, 2, 1, 1], [0, 0, 6, 6, 0, 0], [0, 8, 0, 8, 0]
    )
    rates = [[0 if a == b else 4.0 for b in range(4)] for a in range(4)]
    cluster = tf_libra.Cluster.from_bandwidth(rates)
    stages = [(0, 2, (0,)), (2, 4, (1, 2)), (4, 6, (3,))]
    plan = reference.plan_of(layers, cluster, stages, execution_orders(3, 1))
    # 2, 1 to send, 2 (4 shared by two), 1, 2 and 2, 1, 2, 1, 2; the all-reduce of 12 bytes takes 3.
    timeline = tf_libra.simulate_pipeline(layers, plan, cluster)
    assert timeline.iteration_seconds == 16
    (reduced,) = [b for b in timeline.blocks if b.kind == "all_reduce"]
    assert (reduced.stage, reduced.microbatch) == (1, None)
    assert (reduced.start_seconds, reduced.stop_seconds) == (13, 16)


def test_channels_are_full_duplex():
    """Both ways are busy concurrently, and each way sends one microbatch after the other."""
    layers = tf_libra.LayerGraph.chain([0.0, 0.0], [0.0, 0.0], [0, 0], [10])
    cluster = tf_libra.Cluster.from_bandwidth([[0, 1], [1, 0]])
    plan = reference.plan_of(layers, cluster, [(0, 1, (0,)), (1, 2, (1,))], execution_orders(2, 3))
    timeline = tf_libra.simulate_pipeline(layers, plan, cluster)
    assert timeline.iteration_seconds == 40
    sent = [b for b in timeline.blocks if b.kind.endswith("transfer")]
    assert [b.start_seconds for b in sent if b.kind == "forward_transfer"] == [0, 10, 20]
    assert [b.start_seconds for b in sent if b.kind == "backward_transfer"] == [10, 20, 30]


def test_all_reduces_overlap_transfers_and_computation():
    layers = tf_libra.LayerGraph.chain([1, 1], [1, 1], [5, 50], [1])
    rates = [[0 if a == b else 1.0 for b in range(4)] for a in range(4)]
    cluster = tf_libra.Cluster.from_bandwidth(rates)
    stages = [(0, 1, (0, 1)), (1, 2, (2, 3))]
    plan = reference.plan_of(layers, cluster, stages, execution_orders(2, 1))
    timeline = tf_libra.simulate_pipeline(layers, plan, cluster)
    first, second = sorted(
        (b for b in timeline.blocks if b.kind == "all_reduce"), key=lambda b: b.stage
    )
    # Forward 0.5, sent in 1/4, 0.5 and 0.5 behind; back by the same way.
    assert (second.start_seconds, second.stop_seconds) == (1.75, 51.75)
    assert (first.start_seconds, first.stop_seconds) == (2.5, 7.5)
    assert timeline.iteration_seconds == 51.75


def chain_of_two(rate, num_bytes=4):
    layers = tf_libra.LayerGraph.chain([1, 1], [1, 1], [4, 4], [num_bytes])
    cluster = tf_libra.Cluster.from_bandwidth([[0, rate], [rate, 0]])
    return layers, cluster


def simulate_replicas(**seconds):
    """Simulates a stage of rank 0 and one with two replicas, in one microbatch."""
    layers = tf_libra.LayerGraph.chain([1, 2], [1, 2], [0, 6], [0], **seconds)
    cluster = tf_libra.Cluster.from_bandwidth([[0, 6, 6], [6, 0, 6], [6, 6, 0]])
    stages = [(0, 1, (0,)), (1, 2, (1, 2))]
    plan = reference.plan_of(layers, cluster, stages, execution_orders(2, 1))
    timeline = tf_libra.simulate_pipeline(layers, plan, cluster)
    found = {
        (block.kind, block.stage): (block.start_seconds, block.stop_seconds)
        for block in timeline.blocks
    }
    return timeline, found, least_iteration_seconds(layers, plan, cluster)


def test_updates_follow_what_their_stages_reduce():
    """A stage on its own after its last backward, replicas when all is reduced."""
    timeline, found, _ = simulate_replicas(update_seconds=[10, 1.5])
    assert found["update", 0] == (4, 14)
    assert found["all_reduce", 1] == (3, 4)
    assert found["update", 1] == (4, 5.5)
    assert timeline.iteration_seconds == 14


def test_deferred_gradients_precede_what_is_reduced_and_updated():
    """Replicas share them; the stages before do not wait for them."""
    timeline, found, least = simulate_replicas(update_seconds=[10, 1.5], deferred_seconds=[3, 8])
    assert found["gradients", 1] == (3, 7)
    assert found["all_reduce", 1] == (7, 8)
    assert found["backward", 0] == (3, 4)
    assert found["gradients", 0] == (4, 7)
    assert found["update", 0] == (7, 17)
    assert timeline.iteration_seconds == 17
    assert least <= 17


def test_a_missing_link_is_named_where_it_is_needed():
    layers, cluster = chain_of_two(0)
    separate = reference.plan_of(
        layers, cluster, [(0, 1, (0,)), (1, 2, (1,))], execution_orders(2, 2)
    )
    with pytest.raises(ValueError, match=r"stages .*\[0\] and \[1\]"):
        tf_libra.simulate_pipeline(layers, separate, cluster)
    together = reference.plan_of(layers, cluster, [(0, 2, (1, 0))], execution_orders(1, 2))
    with pytest.raises(ValueError, match=r"replicas .*\[1, 0\]"):
        tf_libra.simulate_pipeline(layers, together, cluster)


def test_nothing_to_send_needs_no_link():
    layers, cluster = chain_of_two(0, num_bytes=0)
    plan = reference.plan_of(layers, cluster, [(0, 1, (0,)), (1, 2, (1,))], execution_orders(2, 2))
    assert tf_libra.simulate_pipeline(layers, plan, cluster).iteration_seconds == 6


def test_first_result_is_sent_first_even_if_it_takes_no_time():
    """GPipe goes backward from the last microbatch; so does what it sends."""
    layers = tf_libra.LayerGraph.chain([0, 30], [10, 0], [0, 0], [100])
    cluster = tf_libra.Cluster.from_bandwidth([[0, 1], [1, 0]])
    plan = tf_libra.make_pipeline_plan(layers, cluster, "gpipe", num_microbatches=3)
    timeline = tf_libra.simulate_pipeline(layers, plan, cluster)
    sent = [block.microbatch for block in timeline.blocks if block.kind == "backward_transfer"]
    assert sent == [2, 1, 0]
    assert timeline.iteration_seconds == 330 + 300 + 10


@pytest.mark.parametrize(("seconds", "rate"), [(1e308, 1.0), (1.0, 1e-320)])
def test_times_that_are_no_number_are_rejected(seconds, rate):
    layers = tf_libra.LayerGraph.chain([seconds / 2] * 2, [0, 0], [0, 0], [1e10])
    cluster = tf_libra.Cluster.from_bandwidth([[0, rate], [rate, 0]])
    plan = reference.plan_of(layers, cluster, [(0, 1, (0,)), (1, 2, (1,))], execution_orders(2, 4))
    with pytest.raises(ValueError, match=r"seconds of layers, .*bytes_per_second .*finite number"):
        tf_libra.simulate_pipeline(layers, plan, cluster)


def test_plans_of_other_layers_or_devices_are_rejected():
    layers, cluster = chain_of_two(1)
    plan = reference.plan_of(layers, cluster, [(0, 1, (0,)), (1, 2, (1,))], execution_orders(2, 2))
    other = tf_libra.LayerGraph.chain([1], [1], [1], [])
    with pytest.raises(ValueError, match=r"plan.*1 layers"):
        tf_libra.simulate_pipeline(other, plan, cluster)
    with pytest.raises(ValueError, match=r"devices.*0.*0,.*1"):
        tf_libra.simulate_pipeline(layers, plan, tf_libra.Cluster.from_bandwidth([[0]]))


def test_orders_that_wait_for_each_other_are_rejected():
    layers, cluster = chain_of_two(1)
    order = (("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1))
    other = (("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1))
    plan = reference.plan_of(layers, cluster, [(0, 1, (0,)), (1, 2, (1,))], [order, other])
    with pytest.raises(ValueError, match="in a circle"):
        tf_libra.simulate_pipeline(layers, plan, cluster)


def test_blocks_are_in_order_of_their_start():
    layers, cluster = chain_of_two(1)
    plan = tf_libra.make_pipeline_plan(layers, cluster, "spp", num_microbatches=5)
    blocks = tf_libra.simulate_pipeline(layers, plan, cluster).blocks
    assert all(a.start_seconds <= b.start_seconds for a, b in itertools.pairwise(blocks))
