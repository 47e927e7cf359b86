"""Charts, bubbles and the bottleneck of a pipeline."""

import itertools

import pytest
from hypothesis import given, settings

import tf_libra
from tests.drawing import num_examples
from tests.model_parallel.planning.pipeline import reference
from tf_libra.model_parallel.planning.pipeline.spp import execution_orders
from tf_libra.model_parallel.simulation.pipeline_gantt import (
    Bar,
    bars_of,
    bottleneck,
    bubbles,
    chart,
)

many = settings(max_examples=num_examples(100), deadline=None)


def planned(forward, backward, parameters, activations, rate, stages, M):
    layers = tf_libra.LayerGraph.chain(forward, backward, parameters, activations)
    V = max(device for *_, devices in stages for device in devices) + 1
    rates = [[0 if a == b else rate for b in range(V)] for a in range(V)]
    cluster = tf_libra.Cluster.from_bandwidth(rates)
    plan = reference.plan_of(layers, cluster, stages, execution_orders(len(stages), M))
    return layers, plan, cluster


ONE = [(0, 2, (0, 1))]
TWO = [(0, 1, (0,)), (1, 2, (1,))]


def test_chart_by_hand():
    """Two stages of 1 s forward and 2 s backward, nothing to send, two microbatches."""
    layers, plan, cluster = planned([1, 1], [2, 2], [0, 0], [0], 1.0, TWO, 2)
    timeline = tf_libra.simulate_pipeline(layers, plan, cluster)
    found = chart(bars_of(plan, timeline), (0, 1), timeline.iteration_seconds, 18)
    assert timeline.iteration_seconds == 9
    assert found == {0: "AABB....aaaa..bbbb", 1: "..AAaaaaBBbbbb...."}


def test_all_reduce_is_seen_where_nothing_is_computed():
    bars = [
        Bar(0, "forward", 0, 0, 0.0, 1.0),
        Bar(0, "backward", 0, 0, 1.0, 2.0),
        Bar(0, "all_reduce", 0, None, 1.5, 4.0),
    ]
    assert chart(bars, (0,), 4.0, 8)[0] == "AAaa===="


def test_an_update_occupies_its_device():
    """Before it a stage waits for its all-reduce, where there is one."""
    bars = [
        Bar(0, "backward", 0, 0, 0.0, 2.0),
        Bar(0, "all_reduce", 0, None, 2.0, 3.0),
        Bar(0, "update", 0, None, 3.0, 4.0),
        Bar(1, "backward", 1, 0, 0.0, 1.0),
        Bar(1, "update", 1, None, 3.0, 3.5),
    ]
    assert chart(bars, (0, 1), 4.0, 8) == {0: "aaaa==++", 1: "aa....+."}
    assert [(bubble.device, bubble.seconds, bubble.why) for bubble in bubbles(bars, 2, 4.0)] == [
        (1, 2.0, "what the step returns"),
        (0, 1.0, "the all-reduce of its stage"),
        (1, 0.5, "the end of the iteration"),
    ]


@many
@given(reference.layer_graphs(), reference.clusters())
def test_bubbles_are_what_computation_leaves(layers, cluster):
    """The bubbles are those of every device, each directly before the block that it names."""
    for stages in itertools.islice(reference.all_plans(layers, cluster), 5):
        plan = reference.plan_of(layers, cluster, stages, execution_orders(len(stages), 3))
        timeline = tf_libra.simulate_pipeline(layers, plan, cluster)
        bars, end = bars_of(plan, timeline), timeline.iteration_seconds
        found = bubbles(bars, len(stages), end)
        assert [gap.seconds for gap in found] == sorted((b.seconds for b in found), reverse=True)
        for device in {bar.device for bar in bars}:
            busy = sum(
                bar.stop_seconds - bar.start_seconds
                for bar in bars
                if bar.device == device and bar.microbatch is not None
            )
            idle = sum(gap.seconds for gap in found if gap.device == device)
            assert busy + idle == pytest.approx(end, rel=1e-9, abs=1e-12)


def test_bubbles_are_named_by_what_is_awaited():
    layers, plan, cluster = planned([1, 1], [2, 2], [0, 0], [0], 1.0, TWO, 2)
    timeline = tf_libra.simulate_pipeline(layers, plan, cluster)
    found = bubbles(bars_of(plan, timeline), 2, timeline.iteration_seconds)
    assert [(gap.device, gap.seconds, gap.why) for gap in found] == [
        (0, 2, "backward of microbatch 0 by stage 1"),
        (1, 2, "the end of the iteration"),
        (0, 1, "backward of microbatch 1 by stage 1"),
        (1, 1, "forward of microbatch 0 by stage 0"),
    ]


@pytest.mark.parametrize(
    ("forward", "activation", "parameters", "stages", "named"),
    [
        ([1, 5], 1, [0, 0], TWO, "stage 1, layer_1, which computes 10 s for each of 4 microb"),
        ([1, 1], 40, [0, 0], TWO, "channel between stages 0 and 1, which takes 10 s for the 40 B"),
        ([1, 1], 0, [400] * 2, ONE, "all-reduce of stage 0, 800 B among devices 0, 1: 200 s"),
    ],
)
def test_bottleneck_is_what_is_busy_longest(forward, activation, parameters, stages, named):
    layers, plan, cluster = planned(forward, forward, parameters, [activation], 4.0, stages, 4)
    assert named in bottleneck(layers, plan, cluster)
