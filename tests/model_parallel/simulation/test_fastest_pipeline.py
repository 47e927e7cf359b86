"""The fastest of several pipeline plans, with few simulations."""

import dataclasses
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.model_parallel.planning.pipeline import reference
from tests.model_parallel.simulation.test_pipeline import plans
from tf_libra.model_parallel.simulation import fastest_pipeline
from tf_libra.model_parallel.simulation.fastest_pipeline import fastest_first
from tf_libra.model_parallel.simulation.pipeline import least_iteration_seconds


@settings(max_examples=200, deadline=None)
@given(st.data(), reference.layer_graphs(), reference.clusters())
def test_plans_come_in_the_order_of_their_simulated_times(data, layers, cluster):
    forward, backward = layers.seconds_by_share()
    updated = layers.with_seconds(forward, backward, forward[:, -1] / 2, layers.input_shares)
    drawn = data.draw(st.lists(plans(updated, cluster), min_size=1, max_size=5))
    predicted = []
    for plan in drawn:
        seconds = tf_libra.simulate_pipeline(updated, plan, cluster).iteration_seconds
        assert least_iteration_seconds(updated, plan, cluster) <= seconds * (1 + 1e-12)
        predicted.append(dataclasses.replace(plan, predicted_seconds=seconds))
    expected = sorted(predicted, key=lambda plan: plan.predicted_seconds)
    assert [*fastest_first(drawn, updated, cluster)] == expected


def test_a_plan_for_64_devices_does_not_simulate_all_candidates():
    """Plans of many stages and microbatches take longest."""
    random, count = np.random.default_rng(1), 64
    forward = random.uniform(0.001, 0.02, 24)
    layers = tf_libra.LayerGraph.chain(
        forward, 2 * forward, random.uniform(1e4, 1e7, 24), random.uniform(1e4, 1e6, 23)
    )
    cluster = tf_libra.Cluster.from_bandwidth(np.full((count, count), 1.25e8))
    simulate = mock.Mock(wraps=fastest_pipeline.simulate_pipeline)
    with mock.patch.object(fastest_pipeline, "simulate_pipeline", simulate):
        plan = tf_libra.make_pipeline_plan(layers, cluster, "spp", num_microbatches=32)
    assert simulate.call_count < 20 and plan.predicted_seconds
