"""A plan that just keeps a limit keeps it in every planner, whatever rounding does to ties."""

import math
import sys

import numpy as np
import pytest

import tf_libra
from tests.drawing import num_examples
from tf_libra.planning.tolerance import TOLERANCE, within


def test_up_to_rounding():
    assert within(3.0, 3.0) and within(3.0 * (1 + TOLERANCE / 2), 3.0)
    assert not within(3.0 * (1 + 3 * TOLERANCE), 3.0)
    assert within(1e300, math.inf)
    assert within(np.array([1.0, 2.0]), 1.0).tolist() == [True, False]


def test_the_largest_number_is_a_limit():
    largest = sys.float_info.max
    assert within(largest, largest) and not within(math.inf, largest)
    # Layer 1 costs nothing, wherever it runs.
    scaling = tf_libra.ScalingProfile.chain(
        [1, 2], [[1.0, 0.5], [0.0, 0.0]], np.zeros((2, 2)), np.zeros((1, 2, 2))
    )
    for strategy in ("deeppool", "data-parallel", "search-linear"):
        plan = tf_libra.make_burst_plan(scaling, strategy, max_amplification=largest)
        assert (plan.iteration_seconds, plan.notes) == (0.5, ()), strategy


def test_every_burst_strategy_satisfies_a_limit_that_is_just_reached():
    rng = np.random.default_rng(0)
    for _ in range(num_examples(1000)):
        alone, limit = rng.random(), 1 + rng.random()
        scaling = tf_libra.ScalingProfile.chain(
            [1, 2], [[alone, alone * limit / 2]], [[0.0, 0.0]], []
        )
        for strategy in ("deeppool", "data-parallel", "search-linear"):
            plan = tf_libra.make_burst_plan(scaling, strategy, max_amplification=limit)
            assert (plan.num_devices, plan.notes) == ((2,), ()), strategy


def test_a_chain_that_just_reaches_the_limit_is_found_by_algorithm_1():
    rng = np.random.default_rng(1)
    for _ in range(num_examples(300)):
        alone, coming, limit = rng.random(2), rng.random(), 2 + rng.random()
        # The second layer, with what comes in from the first on one device, just keeps the limit.
        scaling = tf_libra.ScalingProfile.chain(
            [1, 2],
            [[alone[0], 9.0], [alone[1], max(alone[1] * limit / 2 - coming, 0.0)], [9.0, 1.0]],
            np.zeros((3, 2)),
            [[[0.0, coming], [9.0, 9.0]], [[9.0, 9.0], [9.0, 0.0]]],
        )
        exact = tf_libra.make_burst_plan(scaling, max_amplification=limit)
        printed = tf_libra.make_burst_plan(scaling, "search-linear", max_amplification=limit)
        if not exact.notes:
            assert printed.num_devices == exact.num_devices


def test_requested_number_of_devices_above_the_limit_is_noted():
    scaling = tf_libra.ScalingProfile.chain([1, 2], [[1.0, 0.9]], [[0.0, 0.0]], [])

    def plan(limit):
        return tf_libra.make_burst_plan(
            scaling, "data-parallel", num_devices=2, max_amplification=limit
        )

    assert plan(1.0).num_devices == (2,)
    assert plan(1.0).notes == ("2 devices for every layer amplify one by 1.8, over the limit, 1",)
    assert plan(1.8).notes == plan(None).notes == ()


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_memory_that_stages_just_fit_into(scale):
    rng = np.random.default_rng(2)
    for _ in range(num_examples(500)):
        count = int(rng.integers(3, 7))
        sizes, cut = rng.random(count) * scale, int(rng.integers(1, count))
        sizes[-1] *= 1e-6  # what is left of a sum may be small
        limit = 2 * float(max(sizes[:cut].sum(), sizes[cut:].sum()))
        layers = tf_libra.LayerGraph.chain([1.0] * count, [1.0] * count, sizes, [1.0] * (count - 1))
        cluster = tf_libra.Cluster.from_bandwidth([[0, 1e3], [1e3, 0]], memory_bytes=limit)
        plan = tf_libra.make_pipeline_plan(layers, cluster, "spp", num_microbatches=2)
        for stage in plan.stages:
            assert 2 * sizes[stage.start : stage.stop].sum() <= limit * (1 + 1e-9)
