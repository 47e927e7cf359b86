import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.model_parallel.planning.burst import reference
from tf_libra.model_parallel.simulation import (
    BackgroundJob,
    Interference,
    Multiplexing,
    simulate_multiplexing,
)

ONE = tf_libra.make_burst_plan(tf_libra.ScalingProfile.chain([1], [[1.0]], [[0.0]], []))
HALF = Interference(compute_slowdown=2.0, background_compute=0.5)
PACED = Multiplexing(max_slowdown=None)


def test_operators_of_any_length_are_counted():
    """The foreground waits for the one in progress, which is the one that is done."""
    for seconds in (1e6, 1e200, 1e307):
        found = simulate_multiplexing(ONE, BackgroundJob((seconds,), 1), PACED, HALF)
        assert found.background_iterations == pytest.approx(1 / seconds, rel=1e-5)


def test_one_layer_by_hand():
    # 2 s next to the background, which does 1 s of its work; the second iteration first waits for
    # the 0.2 s that are left of an operator.
    found = simulate_multiplexing(ONE, BackgroundJob((0.4,), 1), PACED, HALF, iterations=2)
    assert found.iteration_seconds == pytest.approx((2.0 + 0.2 + 2.0) / 2)
    assert found.background_iterations == pytest.approx((1.0 + 0.2 + 1.0) / 0.4 / 4.2)
    assert found.foreground_slowdown == pytest.approx(2.1)
    assert found.span_slowdowns == (pytest.approx(2.1), 1.0)


def test_without_a_bound_a_whole_iteration_of_the_background_is_ahead():
    job = BackgroundJob((0.4,) * 10, 1)
    free = dataclasses.replace(PACED, max_outstanding=None)
    found = simulate_multiplexing(ONE, job, free, HALF)
    # 1 of 4 s are done during the first iteration; the second waits for the other 3.
    assert found.iteration_seconds == pytest.approx((2.0 + 3.0 + 2.0) / 2)
    # Priorities are of no use then.
    none = dataclasses.replace(free, priorities=False)
    assert simulate_multiplexing(ONE, job, none, HALF) == found


def test_without_priorities_all_that_is_outstanding_is_ahead():
    job = BackgroundJob((0.4,) * 10, 1)
    how = dataclasses.replace(PACED, max_outstanding=3, priorities=False)
    found = simulate_multiplexing(ONE, job, how, HALF)
    assert found.iteration_seconds == pytest.approx((2.0 + 0.2 + 2.0) / 2)
    how = dataclasses.replace(how, max_outstanding=4)
    found = simulate_multiplexing(ONE, job, how, HALF)
    assert found.iteration_seconds == pytest.approx((2.0 + 0.6 + 2.0) / 2)


def test_large_graphs_are_ahead_as_a_whole():
    job = BackgroundJob((0.4,) * 10, 1)
    how = dataclasses.replace(PACED, operators_per_graph=5)
    found = simulate_multiplexing(ONE, job, how, HALF)
    assert found.iteration_seconds == pytest.approx((2.0 + 1.0 + 2.0) / 2)


def test_within_an_iteration_only_the_operator_in_progress_is_ahead():
    pair = tf_libra.make_burst_plan(
        tf_libra.ScalingProfile.chain([1], [[1.0]] * 2, [[0.0]] * 2, np.zeros((1, 1, 1)))
    )
    free = dataclasses.replace(PACED, max_outstanding=None, operators_per_graph=None)
    found = simulate_multiplexing(pair, BackgroundJob((0.4,) * 10, 1), free, HALF, iterations=1)
    assert found.iteration_seconds == pytest.approx(2.0 + 0.2 + 2.0)


def test_the_host_s_time_shows_with_one_launch_at_a_time():
    idle = tf_libra.make_burst_plan(
        tf_libra.ScalingProfile.chain([1], [[10.0]], [[0.0]], []), "data-parallel"
    )
    nothing = Interference(compute_slowdown=1.0, background_compute=1.0)
    how = Multiplexing(max_outstanding=1, max_slowdown=None, launch_seconds=0.25)
    found = simulate_multiplexing(idle, BackgroundJob((1.0,), 1), how, nothing, iterations=1)
    assert found.background_iterations == pytest.approx(8 / 10)
    hidden = dataclasses.replace(how, max_outstanding=2)
    found = simulate_multiplexing(idle, BackgroundJob((1.0,), 1), hidden, nothing, iterations=1)
    assert found.background_iterations == pytest.approx(1.0)


def test_feedback_pauses_only_during_slowed_spans():
    scaling = tf_libra.ScalingProfile.chain(
        [1, 2],
        [[8.0, 4.0], [8.0, 4.0]],
        [[0.0, 1.0], [0.0, 1.0]],
        np.zeros((1, 2, 2)),
    )
    plan = tf_libra.make_burst_plan(scaling)
    job = BackgroundJob((0.1,), 1)
    how = Multiplexing(max_slowdown=1.5)
    found = simulate_multiplexing(plan, job, how)
    kinds = {plan.spans[index].kind for index in found.paused}
    assert kinds == {"synchronize"}
    without = simulate_multiplexing(plan, job, dataclasses.replace(how, max_slowdown=None))
    assert found.iteration_seconds < without.iteration_seconds
    assert found.background_iterations < without.background_iterations


def test_a_device_without_foreground_does_only_background():
    scaling = tf_libra.ScalingProfile.chain([1, 4], [[1.0, 2.0]], [[0.0, 0.0]], [])
    plan = tf_libra.make_burst_plan(scaling)
    assert plan.num_devices == (1,)
    how = Multiplexing(max_slowdown=1.0)
    found = simulate_multiplexing(plan, BackgroundJob((0.5,), 1), how, iterations=1)
    # Paused on the one, at full pace on the three others.
    assert found.paused == (0,)
    assert found.iteration_seconds == pytest.approx(1.0)
    assert found.background_iterations == pytest.approx(3 / 0.5)


@settings(max_examples=num_examples(60), deadline=None)
@given(
    reference.branching(),
    st.builds(
        Multiplexing,
        max_outstanding=st.sampled_from([None, 1, 2, 5]),
        operators_per_graph=st.sampled_from([None, 1, 3]),
        priorities=st.booleans(),
        max_slowdown=st.sampled_from([None, 1.0, 1.2, 3.0]),
    ),
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5),
)
def test_shares_of_both_jobs_stay_within_bounds(case, how, operators):
    plan = tf_libra.make_burst_plan(case[0], max_amplification=2.0)
    if not plan.iteration_seconds:
        return
    job = BackgroundJob(tuple(operators), 1)
    found = simulate_multiplexing(plan, job, how)
    devices = plan.device_counts[-1]
    assert found.foreground_slowdown >= 1 - 1e-9
    done = found.background_iterations * job.iteration_seconds
    assert 0 <= done <= devices * (1 + 1e-9)
    # Every span at its slowest, behind the longest that may be ahead of it.
    launched = sum(1 for span in plan.spans if span.seconds > 0)
    longest = how.launch_seconds * len(operators) + sum(operators) * (how.max_outstanding or 1)
    bound = 2.0 * plan.iteration_seconds + 2 * launched * longest * 2
    assert found.iteration_seconds <= bound
    if how.max_slowdown is not None:
        for index, slowdown in enumerate(found.span_slowdowns):
            assert slowdown <= how.max_slowdown or index in found.paused


def test_utilization_says_what_is_left():
    busy = simulate_multiplexing(ONE, BackgroundJob((0.4,), 1), PACED, HALF, utilization=[1.0])
    free = simulate_multiplexing(ONE, BackgroundJob((0.4,), 1), PACED, HALF, utilization=[0.0])
    assert busy.background_iterations < free.background_iterations


@pytest.mark.parametrize("outstanding", [None, 1, 2])
@pytest.mark.parametrize(
    ("operators", "iterations", "slowdown"),
    [
        ((1e-300,), 1, 2.0),
        ((5e-324,) * 3, 1, 2.0),
        ((1e-9,), 1, 2.0),
        ((1e-3,), 10**6, 2.0),
        ((1e-3,), 1, 1e300),
    ],
)
def test_no_more_operators_than_can_be_gone_through(outstanding, operators, iterations, slowdown):
    how = Multiplexing(max_outstanding=outstanding, launch_seconds=0.0)
    with pytest.raises(ValueError, match=r"operator_seconds.*1000000"):
        simulate_multiplexing(
            ONE,
            BackgroundJob(operators, 1),
            how,
            Interference(compute_slowdown=slowdown),
            iterations=iterations,
        )


def test_one_short_operator_among_others_is_gone_through():
    # The clock does not notice it.
    found = simulate_multiplexing(ONE, BackgroundJob((0.4, 1e-300), 1), PACED, HALF)
    alone = simulate_multiplexing(ONE, BackgroundJob((0.4,), 1), PACED, HALF)
    assert found.iteration_seconds == pytest.approx(alone.iteration_seconds, rel=1e-3)


def test_whole_numbers_are_integers():
    how = Multiplexing(max_outstanding=np.int64(2), operators_per_graph=2.0, max_slowdown=2)
    same = Multiplexing(max_outstanding=2, operators_per_graph=2, max_slowdown=2.0)
    background = BackgroundJob((0.4, 0.3, 0.2), 4.0)
    assert type(background.batch) is int
    found = simulate_multiplexing(ONE, background, how, Interference(compute_slowdown=1))
    assert found == simulate_multiplexing(ONE, background, same, Interference(compute_slowdown=1.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BackgroundJob((1e308, 1e308), 1), "the sum of operator_seconds must be a finite"),
        (
            lambda: simulate_multiplexing(
                ONE, BackgroundJob((1.7e308,), 1), PACED, HALF, iterations=3
            ),
            "operator_seconds and the plan's seconds must add up to a finite number",
        ),
        (lambda: Multiplexing(max_outstanding=0), "max_outstanding must be from 1"),
        (lambda: Multiplexing(operators_per_graph=0), "operators_per_graph must be from 1"),
        (lambda: Multiplexing(max_slowdown=0.5), "max_slowdown must be at least 1, got 0.5"),
        (lambda: Multiplexing(priorities=1), "priorities must be true or false"),
        (lambda: Multiplexing(launch_seconds=-1), "launch_seconds must be at least 0"),
        (lambda: Interference(compute_slowdown=0.9), "compute_slowdown must be at least 1"),
        (lambda: Interference(background_compute=1.5), "background_compute must be at most 1"),
        (lambda: Interference(background_compute=0), "background_compute must be greater than 0"),
        (lambda: BackgroundJob((), 1), "operator_seconds must hold at least one"),
        (lambda: BackgroundJob((0.0,), 1), r"operator_seconds\[0\] must be greater than 0"),
        (lambda: BackgroundJob((1.0,), 0), "batch must be from 1"),
        (
            lambda: simulate_multiplexing(ONE, BackgroundJob((1.0,), 1), utilization=[0.5, 0.5]),
            "utilization must be 1 numbers from 0 to 1",
        ),
        (
            lambda: simulate_multiplexing(
                dataclasses.replace(ONE, spans=()), BackgroundJob((1.0,), 1)
            ),
            "spans of the plan must take time",
        ),
        (
            lambda: simulate_multiplexing(ONE, BackgroundJob((1.0,), 1), iterations=0),
            "iterations must be from 1",
        ),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
