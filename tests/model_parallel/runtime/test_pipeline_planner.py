"""Among a strategy's plans the shortest that can be executed is taken."""

from unittest import mock

import numpy as np
import pytest

import tf_libra
from tf_libra.model_parallel.planning.pipeline import make_pipeline_plans, spp
from tf_libra.model_parallel.planning.pipeline.partitioning import Partitions
from tf_libra.model_parallel.runtime.pipeline_planner import plan_for
from tf_libra.strategies import GPipe, Spp


def chain(parameter_bytes, activation_bytes=1e6):
    count = len(parameter_bytes)
    return tf_libra.LayerGraph.chain(
        [1.0] * count, [2.0] * count, parameter_bytes, [activation_bytes] * (count - 1)
    )


def complete(count, memory_bytes=None):
    return tf_libra.Cluster.from_bandwidth(1e9 * (1 - np.eye(count)), memory_bytes=memory_bytes)


def no_check(plan):
    pass


def test_all_numbers_of_stages_are_of_one_table():
    layers, cluster = chain([1e9, 2e9, 3e9, 1e9, 2e9]), complete(4)
    with mock.patch.object(spp, "Partitions", wraps=Partitions) as made:
        plan = plan_for(layers, cluster, Spp(), 4, no_check)
    assert made.call_count == 1
    assert plan == tf_libra.make_pipeline_plan(layers, cluster, "spp", num_microbatches=4)
    plans = tuple(make_pipeline_plans(layers, cluster, "spp", num_microbatches=4))
    assert plans[0] == plan
    assert sorted(len(candidate.stages) for candidate in plans) == [1, 2, 3, 4]
    for candidate in plans:
        alone = Spp(num_stages=len(candidate.stages), num_microbatches=4)
        assert candidate == tf_libra.make_pipeline_plan(layers, cluster, alone)
        assert [*make_pipeline_plans(layers, cluster, alone)] == [candidate]


def test_a_number_of_stages_that_is_not_possible_is_passed_over():
    # All on each device do not fit.
    layers, cluster = chain([3e9, 1e9, 2e9]), complete(2, memory_bytes=6e9)
    plan = plan_for(layers, cluster, Spp(), 2, no_check)
    assert plan == tf_libra.make_pipeline_plan(layers, cluster, "spp", num_microbatches=2)
    assert [(stage.start, stage.stop) for stage in plan.stages] == [(0, 1), (1, 3)]
    tight = complete(2, memory_bytes=6e9)
    layers = chain([3e9, 3e9, 3e9])
    with pytest.raises(ValueError, match="2 devices"):
        plan_for(layers, tight, Spp(), 2, no_check)


def test_next_best_plan_is_selected_and_logged_if_the_best_cannot_be_executed():
    layers, cluster = chain([1e9, 2e9, 3e9, 1e9, 2e9]), complete(4)
    first, second, *_ = make_pipeline_plans(layers, cluster, "spp", num_microbatches=4)

    def check(plan):
        if plan == first:
            raise ValueError("samples cannot be told apart")

    plan = plan_for(layers, cluster, Spp(), 4, check)
    assert plan.stages == second.stages
    note = f"a plan of {len(first.stages)} stages is not possible: samples cannot be told apart"
    assert plan.notes == (note,)


def test_a_strategy_that_does_not_choose_has_one_plan():
    layers, cluster = chain([1e6] * 3), complete(3)
    [plan] = make_pipeline_plans(layers, cluster, "gpipe", num_microbatches=2)
    assert plan == plan_for(layers, cluster, GPipe(), 2, no_check)
