"""Pipelines of all strategies side by side."""

import numpy as np
import pytest

import tf_libra
from tf_libra import strategies
from tf_libra.model_parallel.planning.pipeline import BY_NAME
from tf_libra.model_parallel.planning.pipeline.compare import compare

LAYERS = tf_libra.LayerGraph.chain([1, 2, 1], [2, 2, 1], [10, 20, 5], [3, 3])
CLUSTER = tf_libra.Cluster.from_bandwidth([[0, 5], [5, 0]])


def test_rows_are_what_each_plans() -> None:
    rows = compare(LAYERS, CLUSTER, {name: kind() for name, kind in BY_NAME.items()}, 4)
    assert [row.name for row in rows] == list(BY_NAME)
    for row in rows:
        plan = tf_libra.make_pipeline_plan(LAYERS, CLUSTER, row.name, num_microbatches=4)
        assert row.plan == plan and not row.problem
        assert row.timeline.iteration_seconds == plan.predicted_seconds


def test_who_has_no_plan_says_why_and_all_together_raise() -> None:
    """In a row of devices there is no all-reduce over all."""
    row = tf_libra.Cluster.from_bandwidth(np.eye(3, k=1) + np.eye(3, k=-1))
    kinds = {name: BY_NAME[name]() for name in ("data-parallel", "gpipe")}
    first, second = compare(LAYERS, row, kinds, 4)
    assert first.plan is None and first.timeline is None
    assert "bytes_per_second of cluster must" in first.problem
    assert second.plan is not None
    apart = tf_libra.Cluster.from_bandwidth(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="bytes_per_second of cluster must"):
        compare(LAYERS, apart, {name: kind() for name, kind in BY_NAME.items()}, 4)


def test_arguments_that_allow_no_plan_are_refused() -> None:
    """Also where other strategies could plan."""
    both = {"spp": strategies.Spp(), "few": strategies.GPipe(num_stages=3)}
    with pytest.raises(ValueError, match="num_stages must be at most the number of devices, 2"):
        compare(LAYERS, CLUSTER, both, 4)
    with pytest.raises(ValueError, match="num_microbatches must be from 1"):
        compare(LAYERS, CLUSTER, both, 0)
