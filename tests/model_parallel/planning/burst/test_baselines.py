import numpy as np
import pytest
from hypothesis import given, settings

import tf_libra
from tests.drawing import num_examples
from tests.model_parallel.planning.burst import reference
from tf_libra.model_parallel.planning import burst

SCALING = tf_libra.ScalingProfile.chain(
    [1, 2, 4],
    [[8.0, 4.0, 2.0], [2.0, 1.5, 1.5]],
    [[0.0, 0.5, 0.5], [0.0, 1.0, 2.0]],
    np.full((1, 3, 3), 0.25) * (1 - np.eye(3)),
)


def test_data_parallelism_at_every_scale():
    plans = burst.data_parallel(SCALING)
    assert [plan.num_devices for plan in plans] == [(1, 1), (2, 2), (4, 4)]
    assert [plan.iteration_seconds for plan in plans] == [10.0, 7.0, 6.0]
    assert [plan.device_seconds for plan in plans] == [10.0, 14.0, 24.0]
    assert plans[2].amplification == (1.25, 7.0)


def test_the_quickest_data_parallelism_within_a_limit():
    def devices(**limit):
        return tf_libra.make_burst_plan(SCALING, "data-parallel", **limit).num_devices[0]

    assert devices() == 4
    assert devices(max_amplification=2.5) == 2
    assert devices(max_amplification=1.0) == 1
    assert devices(num_devices=2, max_amplification=1.0) == 2
    costly = tf_libra.ScalingProfile.chain([1, 2], [[1.0, 0.9]], [[0.5, 0.5]], [])
    plan = tf_libra.make_burst_plan(costly, "data-parallel", max_amplification=1.2)
    assert plan.num_devices == (1,)
    assert any("no number of devices" in note for note in plan.notes)


def test_partitions_divide_the_cluster():
    partitions = burst.static_partitions(SCALING)
    assert [(p.foreground_devices, p.background_devices) for p in partitions] == [
        (1, 3),
        (2, 2),
        (4, 0),
    ]
    assert partitions[0].background_iterations(0.5) == 6.0
    assert partitions[1].foreground.iteration_seconds == 7.0


def test_the_strong_scaling_limit():
    # The sum of each layer's shortest time.
    assert burst.strong_scaling_limit(SCALING) == 2.5 + 2.0


def test_the_strong_scaling_limit_of_branches_is_one_of_devices():
    # Two branches of 4 device seconds each; one device cannot run both concurrently.
    scaling = tf_libra.ScalingProfile.graph(
        [1], [[1.0], [4.0], [4.0], [1.0]], np.zeros((4, 1)), [(0, 1), (0, 2), (1, 3), (2, 3)],
        np.zeros((4, 1, 1)), np.zeros((4, 1, 1)),
    )  # fmt: skip
    assert burst.strong_scaling_limit(scaling) == 10.0
    assert tf_libra.make_burst_plan(scaling).iteration_seconds == 10.0


@settings(max_examples=num_examples(60), deadline=None)
@given(reference.branching())
def test_no_plan_is_quicker_than_the_limit_and_bursts_are_no_slower_than_data_parallelism(case):
    scaling, _ = case
    plan = tf_libra.make_burst_plan(scaling)
    assert burst.strong_scaling_limit(scaling) <= plan.iteration_seconds * (1 + 1e-12)
    for same in burst.data_parallel(scaling):
        assert plan.iteration_seconds <= same.iteration_seconds * (1 + 1e-9)
        assert set(same.num_devices) == {same.num_devices[0]}
        assert set(same.lanes) == {0}


def test_branches_that_do_not_join_as_they_parted_are_named():
    # An edge from one branch to another.
    scaling = tf_libra.ScalingProfile.graph(
        [1],
        np.ones((4, 1)),
        np.zeros((4, 1)),
        [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)],
        np.zeros((5, 1, 1)),
        names=["in", "left", "right", "out"],
    )
    for strategy in ("deeppool", "data-parallel"):
        with pytest.raises(ValueError, match="left, right"):
            tf_libra.make_burst_plan(scaling, strategy)
    with pytest.raises(ValueError, match=r"^search-linear"):
        tf_libra.make_burst_plan(scaling, "search-linear")


def test_user_provided_numbers_of_devices():
    """Covers a chain and sequential branches; the plan's own device counts are valid."""
    compute = np.array([[4.0, 2.5], [3.0, 2.0], [2.0, 1.5]])
    moves = np.array([[[0.0, 0.5], [0.25, 0.0]]] * 3)
    chain = tf_libra.ScalingProfile.chain([1, 2], compute, 0.1 * compute, moves[:2])
    plan = burst.with_device_counts(chain, [2, 1, 2])
    assert plan.num_devices == (2, 1, 2) and plan.strategy == "given"
    assert plan.iteration_seconds == pytest.approx(1.1 * (2.5 + 3.0 + 1.5) + 0.25 + 0.5)
    branching = tf_libra.ScalingProfile.graph(
        [1, 2], compute, 0.1 * compute, [(0, 1), (0, 2), (1, 2)], moves
    )
    plan = burst.with_device_counts(branching, [1, 2, 1])
    assert plan.num_devices == (1, 2, 1) and set(plan.lanes) == {0}
    assert plan.iteration_seconds == pytest.approx(1.1 * (4.0 + 2.0 + 2.0) + 0.5 + 0.25)
    with pytest.raises(ValueError, match="num_devices"):
        burst.with_device_counts(chain, [2, 3, 2])
    with pytest.raises(ValueError, match=r"num_devices.*3,.*2"):
        burst.with_device_counts(chain, [2, 1])
