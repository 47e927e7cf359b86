import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.planning.burst import reference
from tf_libra.simulation import simulate_burst


@settings(max_examples=60, deadline=None)
@given(reference.branching(), st.sampled_from([None, 1.5, 4.0]))
def test_tasks_run_when_the_plan_says(case, limit):
    scaling, _ = case
    plan = tf_libra.make_burst_plan(scaling, max_amplification=limit)
    for ran, planned in zip(simulate_burst(scaling, plan), plan.spans, strict=True):
        assert ran.start_seconds == pytest.approx(planned.start_seconds, rel=1e-9, abs=1e-12)
        assert ran.stop_seconds == pytest.approx(planned.stop_seconds, rel=1e-9, abs=1e-12)


def test_another_profile_gives_other_times_for_the_same_plan():
    scaling = tf_libra.ScalingProfile.chain(
        [1, 2], [[2.0, 1.0], [2.0, 3.0]], np.zeros((2, 2)), np.full((1, 2, 2), 0.5)
    )
    plan = tf_libra.make_burst_plan(scaling)
    assert plan.num_devices == (2, 1)
    slower = tf_libra.ScalingProfile.chain(
        [1, 2], [[4.0, 4.0], [2.0, 2.0]], np.zeros((2, 2)), np.full((1, 2, 2), 0.25)
    )
    assert max(s.stop_seconds for s in simulate_burst(slower, plan)) == pytest.approx(6.25)


def test_other_layers_are_refused():
    scaling = tf_libra.ScalingProfile.chain([1], [[1.0]], [[0.0]], [])
    plan = tf_libra.make_burst_plan(scaling)
    other = tf_libra.ScalingProfile.chain([1], [[1.0]], [[0.0]], [], names=["other"])
    with pytest.raises(ValueError, match="plan must be of the profile's 1 layers"):
        simulate_burst(other, plan)
    pair = tf_libra.ScalingProfile.chain(
        [1, 2], [[1.0, 0.5]] * 2, np.zeros((2, 2)), np.zeros((1, 2, 2))
    )
    lone = tf_libra.ScalingProfile.chain([1], [[1.0]] * 2, np.zeros((2, 1)), np.zeros((1, 1, 1)))
    with pytest.raises(ValueError, match=r"num_devices must be one of \(1,\), got 2"):
        simulate_burst(lone, tf_libra.make_burst_plan(pair))
    apart = tf_libra.ScalingProfile.graph(
        [1, 2], [[1.0, 0.5]] * 2, np.zeros((2, 2)), [], np.zeros((0, 2, 2))
    )
    with pytest.raises(ValueError, match=r"edges must hold \(0, 1\)"):
        simulate_burst(apart, tf_libra.make_burst_plan(pair))
