"""The gradients of a stage that are fused."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model_parallel.job import batches, build_model, make_plan, trace
from tests.model_parallel.models import EVERY
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.profiling.link_benchmark import LinkRates
from tf_libra.model_parallel.runtime.gradient_buckets import groups_of
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph


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
        assert sorted(name for one in found[1] for name in one) == sorted(cut.reductions[1])
