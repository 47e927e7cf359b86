from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tests.simulation.test_api import THREADS, plan_of, planned
from tf_libra.simulation.sequential import simulate_sequential
from tf_libra.simulation.streams import simulate_streams
from tf_libra.specs.plan import Plan, TensorGroup

GAMMA = 1.5
# a = 1 s; 1 s per byte during computation and alone; computation keeps its speed.
COST = tf_libra.ContentionModel(2, 0.5, (1.0, 0.0), (1.0, 0, 0), (1.0, 0, 0))


def simulate(num_bytes, compute_seconds, streams, cost=COST):
    profile = tf_libra.BackwardProfile.from_arrays(num_bytes, compute_seconds)
    groups = tuple(TensorGroup(i, i + 1, 1, stream) for i, stream in enumerate(streams))
    plan = Plan.for_profile(profile, groups, 2, "by hand", contention=GAMMA)
    return tf_libra.simulate(profile, plan, cost)


def test_two_equal_concurrent_all_reduces_take_equation_9():
    timeline = simulate([4, 4], [2, 0], [0, 1])
    assert timeline.backward_seconds == pytest.approx(2 + 1 + GAMMA * 4)
    assert [span.end_seconds for span in timeline.groups] == pytest.approx([9, 9])


def test_penalty_equals_equations_12_and_13():
    # The second arrives when 3 of the first's 1 + 4 seconds are over.
    timeline = simulate([4, 4], [2, 3], [0, 1])
    left = 4 * (1 - 3 / (1 + 4))
    penalty = (GAMMA - 1) * left
    first, second = timeline.groups
    assert first.end_seconds == pytest.approx(2 + 5 + penalty)
    assert second.start_seconds == pytest.approx(5)
    # Equal sizes: both pay the same penalty.
    assert second.end_seconds == pytest.approx(5 + 5 + penalty)


def test_a_third_waits_for_its_own_stream():
    timeline = simulate([8, 2, 1], [1, 1, 1], [0, 1, 1])
    first, second, third = timeline.groups
    assert second.start_seconds < first.end_seconds
    assert third.start_seconds == pytest.approx(second.end_seconds)


def test_groups_start_in_order():
    # The third's stream is free immediately, but the second waits for the first.
    timeline = simulate([8, 1, 1], [1, 1, 1], [0, 0, 1])
    first, second, third = timeline.groups
    assert second.start_seconds == first.end_seconds
    assert third.start_seconds == second.start_seconds


def test_both_take_threads_from_computation():
    cost = tf_libra.ContentionModel(2, 0.0, (1.0, 0.25), (1e-2, 0, 0), (1e-2, 0, 0))
    timeline = simulate([1, 1, 1], [1, 1, 2], [0, 1, 0], cost)
    # r = 1: 1 s takes 1 / 0.75; two concurrent ones: 2 s take 2 / 0.5.
    assert timeline.groups[1].ready_seconds == pytest.approx(1 + 1 / 0.75)
    assert timeline.computation_end_seconds == pytest.approx(1 + 1 / 0.75 + 2 / 0.5)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_each_further_all_reduce_adds_the_same_delay(count):
    timeline = simulate([4] * count, [2] + [0] * (count - 1), [10 * i for i in range(count)])
    each = 1 + (1 + (count - 1) * (GAMMA - 1)) * 4
    assert [span.end_seconds for span in timeline.groups] == pytest.approx([2 + each] * count)


def pieces(profile, plan):
    """The same with every part of a tensor as a tensor of its own, produced at the same time."""
    num_bytes, compute_seconds, update_seconds, stops = [], [], [], []
    for index in range(len(plan.groups)):
        for part in plan.parts(index):
            num_bytes.append(part.num_bytes)
            first = part.start_byte == 0
            compute_seconds.append(float(profile.compute_seconds[part.tensor]) if first else 0.0)
            tensor = profile.tensors[part.tensor]
            last = part.stop_byte == tensor.num_bytes
            update_seconds.append(tensor.update_seconds if last else 0.0)
        stops.append(len(num_bytes))
    groups = tuple(
        TensorGroup(start, stop, group.num_threads, group.stream)
        for start, stop, group in zip([0, *stops], stops, plan.groups, strict=False)
    )
    other = tf_libra.BackwardProfile.from_arrays(
        num_bytes, compute_seconds, update_seconds=update_seconds
    )
    return other, Plan.for_profile(
        other, groups, 2, "by hand", after_backward=plan.after_backward, contention=GAMMA
    )


def assert_alike(actual, other):
    tolerance = 1e-9 * actual.backward_seconds
    for first, second in [
        *zip(actual.groups, other.groups, strict=True),
        *zip(actual.stages, other.stages, strict=True),
    ]:
        assert vars(second) == pytest.approx(vars(first), rel=1e-9, abs=tolerance)
    assert other.backward_seconds == pytest.approx(actual.backward_seconds, rel=1e-9)
    assert other.step_seconds == pytest.approx(actual.step_seconds, rel=1e-9)


@settings(max_examples=num_examples(300), deadline=None)
@given(st.data(), reference.profiles(updates=True), reference.any_costs(THREADS), st.booleans())
def test_parts_on_one_stream_equal_the_sequential_simulator(data, profile, cost, after_backward):
    plan = data.draw(reference.part_plans(profile, THREADS))
    plan = replace(plan, after_backward=after_backward)
    fast = simulate_sequential(profile, plan, cost)
    assert_alike(fast, simulate_streams(profile, plan, cost))
    assert_alike(fast, tf_libra.simulate(*pieces(profile, plan), cost))


@settings(max_examples=num_examples(200), deadline=None)
@given(st.data(), reference.profiles(), reference.any_costs((5,)))
def test_parts_on_several_streams_equal_separate_tensors(data, profile, cost):
    # At most five concurrent ones of one thread: rates are positive at r = 5.
    plan = data.draw(reference.part_plans(profile, (1,), (0, 1, 2, 7, 9)))
    plan = replace(plan, contention=GAMMA)
    assert_alike(
        tf_libra.simulate(profile, plan, cost), tf_libra.simulate(*pieces(profile, plan), cost)
    )


def test_tensor_is_updated_after_all_its_parts():
    profile = tf_libra.BackwardProfile.from_arrays([8, 0], [1, 0], update_seconds=[2, 0])
    groups = (
        TensorGroup(0, 1, 1, 0, stop_byte=7),
        TensorGroup(0, 2, 1, 1, start_byte=7),
    )
    plan = Plan.for_profile(profile, groups, 2, "by hand")
    first, second = tf_libra.simulate(profile, plan, COST).groups
    assert first.end_seconds == pytest.approx(1 + 1 + 7)
    assert second.end_seconds < 4
    assert tf_libra.simulate(profile, plan, COST).step_seconds == pytest.approx(9 + 2)


def test_stages_add_up():
    timeline = simulate([4, 0, 3, 2], [2, 1, 0, 3], [0, 1, 1, 0])
    assert len(timeline.stages) == 5
    assert timeline.backward_seconds == pytest.approx(
        max(span.end_seconds for span in timeline.groups)
    )
    overlapped = sum(s.overlap_seconds + s.residual_compute_seconds for s in timeline.stages)
    assert overlapped == pytest.approx(6)


def test_computation_without_resources_is_rejected():
    cost = tf_libra.ContentionModel(2, 0.0, (1.0, 0.5), (1e-2, 0, 0), (1e-2, 0, 0))
    with pytest.raises(ValueError, match="positive at r = 2"):
        simulate([1, 1, 1], [1, 1, 2], [0, 1, 0], cost)


@settings(max_examples=num_examples(300), deadline=None)
@given(planned(reference.profiles(updates=True)), reference.any_costs(THREADS), st.booleans())
def test_one_stream_equals_the_sequential_simulator(case, cost, after_backward):
    profile, plan = case
    plan = plan_of(
        profile,
        [g.stop for g in plan.groups],
        [g.num_threads for g in plan.groups],
        after_backward=after_backward,
    )
    assert_alike(simulate_sequential(profile, plan, cost), simulate_streams(profile, plan, cost))
