import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.model_parallel.planning.burst import reference
from tf_libra.model_parallel.planning.burst import reschedule
from tf_libra.model_parallel.simulation import simulate_burst


@settings(max_examples=num_examples(60), deadline=None)
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


@settings(max_examples=num_examples(60), deadline=None)
@given(reference.branching(), st.sampled_from([None, 1.5, 4.0]), st.floats(0.1, 10))
def test_a_plan_by_another_profile_is_all_of_that_profile(case, limit, factor):
    scaling, _ = case
    other = dataclasses.replace(
        scaling,
        compute_seconds=factor * scaling.compute_seconds,
        synchronize_seconds=factor * scaling.synchronize_seconds,
        transition_seconds=factor * scaling.transition_seconds,
        move_seconds=None if scaling.move_seconds is None else factor * scaling.move_seconds,
    )
    plan = tf_libra.make_burst_plan(scaling, max_amplification=limit)
    again = reschedule(other, plan)
    assert again.profile_fingerprint == other.fingerprint
    assert again.fingerprint == plan.fingerprint
    for found, own in (
        (again.iteration_seconds, plan.iteration_seconds),
        (again.device_seconds, plan.device_seconds),
        (sum(again.idle_seconds), sum(plan.idle_seconds)),
    ):
        assert found == pytest.approx(factor * own, rel=1e-9, abs=1e-9)
    assert again.amplification == pytest.approx(plan.amplification, rel=1e-9)
    assert again.transition_seconds == pytest.approx(
        [factor * seconds for seconds in plan.transition_seconds], rel=1e-9, abs=1e-9
    )


def test_a_plan_without_all_that_layers_do_is_rejected():
    scaling = tf_libra.ScalingProfile.chain(
        [1, 2], [[1.0, 0.5]] * 2, np.zeros((2, 2)), np.zeros((1, 2, 2))
    )
    plan = tf_libra.make_burst_plan(scaling)
    for lost, span in enumerate(plan.spans):
        left = plan.spans[:lost]  # what comes after waits for it
        with pytest.raises(ValueError, match=f"spans must hold one .* of layer .*{span.layer}"):
            simulate_burst(scaling, dataclasses.replace(plan, spans=left))
    spans = (*plan.spans, dataclasses.replace(plan.spans[-1], after=()))
    with pytest.raises(ValueError, match=r"spans.*2"):
        simulate_burst(scaling, dataclasses.replace(plan, spans=spans))


def test_other_layers_are_rejected():
    scaling = tf_libra.ScalingProfile.chain([1], [[1.0]], [[0.0]], [])
    plan = tf_libra.make_burst_plan(scaling)
    other = tf_libra.ScalingProfile.chain([1], [[1.0]], [[0.0]], [], names=["other"])
    with pytest.raises(ValueError, match=r"plan.*profile's 1 layers"):
        simulate_burst(other, plan)
    with pytest.raises(ValueError, match=r"plan.*BurstPlan,.*NoneType"):
        simulate_burst(other, None)
    pair = tf_libra.ScalingProfile.chain(
        [1, 2], [[1.0, 0.5]] * 2, np.zeros((2, 2)), np.zeros((1, 2, 2))
    )
    lone = tf_libra.ScalingProfile.chain([1], [[1.0]] * 2, np.zeros((2, 1)), np.zeros((1, 1, 1)))
    with pytest.raises(ValueError, match=r"num_devices.*\(1,\),.*2"):
        simulate_burst(lone, tf_libra.make_burst_plan(pair))
    apart = tf_libra.ScalingProfile.graph(
        [1, 2], [[1.0, 0.5]] * 2, np.zeros((2, 2)), [], np.zeros((0, 2, 2))
    )
    with pytest.raises(ValueError, match=r"edges must hold \(0, 1\)"):
        simulate_burst(apart, tf_libra.make_burst_plan(pair))
