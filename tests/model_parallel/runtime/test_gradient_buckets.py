"""The gradients of a stage that are fused."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model_parallel.job import batches, build_model, make_plan, trace
from tests.model_parallel.models import EVERY
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.planning.link_rates import AllReduces, LinkRates
from tf_libra.model_parallel.runtime.gradient_buckets import burst_groups_of, groups_of
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.scaling_profile import ScalingProfile


@pytest.mark.parametrize(("first_seconds", "pays"), [(1e-6, True), (1e3, False)])
def test_a_later_stage_has_groups_where_the_iteration_is_shorter_for_it(first_seconds, pays):
    """Not where the stage before ends later anyway."""
    images, labels = batches(1, 8)[0]
    recorder = StepRecorder(tf.function(build_model(EVERY["convolutional"]).step))
    graph = trace(recorder, images, labels, 8)
    names = [layer.name for layer in graph.layers]
    seconds = [first_seconds, *[0.01] * (len(names) - 1)]
    sizes = [layer.parameter_bytes for layer in graph.layers]
    layers = LayerGraph.chain(seconds, seconds, sizes, [1.0] * (len(names) - 1), names)
    rates = np.full([3, 3], sum(sizes) / 0.02)
    cut, plan = StagePartition(graph, (0, 1)), make_plan(names, (0, 1), (1, 2), 2)
    found = groups_of(cut, plan, layers, LinkRates(Cluster.from_bandwidth(rates), 1e-6))
    assert found[0] == []  # it has no replicas
    assert (len(found[1]) > 1) == pays
    if pays:
        assert sorted(name for bucket in found[1] for name in bucket) == sorted(cut.reductions[1])


@pytest.mark.parametrize(("seconds", "pays"), [(0.02, True), (1e-6, False)])
def test_replicated_stage_of_a_burst_overlaps_where_backward_hides_an_all_reduce(seconds, pays):
    images, labels = batches(1, 8)[0]
    recorder = StepRecorder(tf.function(build_model(EVERY["convolutional"]).step))
    graph = trace(recorder, images, labels, 8)
    count = len(graph.layers)
    compute = np.full([count, 2], seconds)
    zeros = np.zeros([count - 1, 2, 2])
    scaling = ScalingProfile.chain((1, 2), compute, np.zeros([count, 2]), zeros)
    layout = Layout.for_layers([(0, 1)] * (count - 1) + [(0,)], 2)
    cut = StagePartition(graph, layout.starts)
    size = sum(layer.parameter_bytes for layer in graph.layers)
    found = burst_groups_of(cut, layout, scaling, AllReduces((0.0, 1e-3), (1.0, size / 0.05)))
    assert found[1] == []  # it has no replicas
    assert (len(found[0]) > 1) == pays
    if pays:
        assert sorted(name for group in found[0] for name in group) == sorted(cut.reductions[0])
