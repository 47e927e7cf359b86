import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tf_libra.specs.plan import Plan, TensorGroup

THREADS = (1, 2, 5)
many = settings(max_examples=num_examples(300), deadline=None)


def plan_of(profile, stops, threads, streams=None, **kwargs):
    starts = [0, *stops[:-1]]
    streams = streams or [0] * len(stops)
    groups = tuple(map(TensorGroup, starts, stops, threads, streams))
    return Plan.for_profile(profile, groups, 2, "by hand", **kwargs)


STOPS = {n: st.sampled_from(list(reference.all_stops(n, n))) for n in range(1, 6)}
DENSITIES = st.lists(st.floats(0, 1), min_size=5, max_size=5)
THREADS_OF_ALL = st.sampled_from(list(itertools.product(THREADS, repeat=5)))


@st.composite
def planned(draw, profiles):
    """A profile with a plan of its tensors."""
    profile = draw(profiles)
    stops, threads = draw(STOPS[len(profile.tensors)]), draw(THREADS_OF_ALL)
    return profile, plan_of(profile, stops, threads[: len(stops)])


@many
@given(planned(reference.profiles()), reference.any_costs(THREADS))
def test_simulation_equals_equations_8_to_15(case, cost):
    profile, plan = case
    timeline = tf_libra.simulate(profile, plan, cost)
    expected = reference.simulate(
        profile, cost, [g.stop for g in plan.groups], [g.num_threads for g in plan.groups]
    )
    assert timeline.backward_seconds == pytest.approx(expected, rel=1e-9)


@many
@given(planned(reference.profiles()), reference.any_costs(THREADS), DENSITIES)
def test_density_counts_as_fewer_bytes(case, cost, densities):
    profile, plan = case
    sparse = profile.with_density(dict(zip(profile.names, densities, strict=False)))
    fewer = tf_libra.BackwardProfile.from_arrays(sparse.effective_bytes, sparse.compute_seconds)
    timeline = tf_libra.simulate(sparse, plan, cost)
    assert timeline == tf_libra.simulate(fewer, Plan.for_profile(fewer, plan.groups, 2, ""), cost)
    whole = profile.with_density(dict.fromkeys(profile.names, 1.0))
    assert tf_libra.simulate(whole, plan, cost) == tf_libra.simulate(profile, plan, cost)


@many
@given(planned(reference.profiles()), reference.lawful_costs(THREADS), DENSITIES, st.integers(0, 4))
def test_denser_gradient_never_shortens_backward(case, cost, densities, index):
    profile, plan = case
    plan = replace(plan, groups=tuple(replace(g, num_threads=2) for g in plan.groups))
    profile = profile.with_density(dict(zip(profile.names, densities, strict=False)))
    name = profile.names[index % len(profile.names)]
    seconds = [
        tf_libra.simulate(profile.with_density({name: density}), plan, cost).backward_seconds
        for density in sorted(densities)
    ]
    for less, more in itertools.pairwise(seconds):
        assert more >= less * (1 - 1e-9)


@many
@given(planned(reference.profiles()), reference.any_costs(THREADS))
def test_stages_and_spans_follow_each_other(case, cost):
    profile, plan = case
    timeline = tf_libra.simulate(profile, plan, cost)
    assert len(timeline.stages) == len(plan.groups) + 1
    tolerance = 1e-9 * timeline.backward_seconds
    for before, after in itertools.pairwise(timeline.stages):
        assert after.start_seconds == pytest.approx(before.end_seconds, abs=tolerance)
        assert min(after.residual_compute_seconds, after.residual_communication_seconds) == 0
    for stage, span in zip(timeline.stages[1:], timeline.groups, strict=True):
        assert span.start_seconds == stage.start_seconds
        assert span.ready_seconds <= span.start_seconds + tolerance
        assert span.end_seconds <= stage.end_seconds + tolerance
    last = timeline.stages[-1]
    assert last.overlap_seconds == last.residual_compute_seconds == 0
    size = sum(plan.num_bytes[plan.groups[-1].start :])
    alone = float(cost.exclusive_all_reduce(size, plan.groups[-1].num_threads))
    assert last.residual_communication_seconds == pytest.approx(alone)
    assert timeline.computation_end_seconds <= timeline.backward_seconds + tolerance


@many
@given(planned(reference.profiles()), reference.lawful_costs(THREADS), st.floats(0, 1e-2))
def test_lemma_3_more_computation_never_shortens_the_rest(case, cost, alone):
    profile, plan = case
    longer = list(profile.compute_seconds)
    longer[-1] += alone
    more = tf_libra.BackwardProfile.from_arrays(profile.num_bytes, longer)
    before = tf_libra.simulate(profile, plan, cost).backward_seconds
    assert tf_libra.simulate(more, plan, cost).backward_seconds >= before * (1 - 1e-9)


@many
@given(planned(reference.profiles()), reference.lawful_costs(THREADS), st.floats(0, 1e-2))
def test_lemma_4_forced_serial_execution_is_never_faster(case, cost, alone):
    profile, plan = case
    longer = list(profile.compute_seconds)
    longer[-1] += alone
    more = tf_libra.BackwardProfile.from_arrays(profile.num_bytes, longer)
    overlapped = tf_libra.simulate(more, plan, cost).backward_seconds
    serial = tf_libra.simulate(profile, plan, cost).backward_seconds + alone
    assert overlapped <= serial * (1 + 1e-9)


@many
@given(planned(reference.profiles()), reference.any_costs(THREADS))
def test_after_backward_is_computation_then_communication(case, cost):
    profile, plan = case
    after = plan_of(
        profile,
        [g.stop for g in plan.groups],
        [g.num_threads for g in plan.groups],
        after_backward=True,
    )
    timeline = tf_libra.simulate(profile, after, cost)
    alone = sum(
        float(cost.exclusive_all_reduce(sum(plan.num_bytes[g.start : g.stop]), g.num_threads))
        for g in plan.groups
    )
    expected = float(profile.compute_seconds.sum()) + alone
    assert timeline.backward_seconds == pytest.approx(expected)
    assert timeline.groups[0].start_seconds == pytest.approx(profile.compute_seconds.sum())


@many
@given(planned(reference.profiles()), reference.any_costs(THREADS))
def test_streams_without_overlap_equal_one_stream(case, cost):
    profile, plan = case
    count = len(plan.groups)
    stops, threads = [g.stop for g in plan.groups], [g.num_threads for g in plan.groups]
    # Every group on stream 1 but a last one of 0 bytes and 0 seconds, which meets nothing.
    padded = tf_libra.BackwardProfile.from_arrays(
        [*profile.num_bytes, 0], [*profile.compute_seconds, 0.0]
    )
    plan = plan_of(padded, [*stops, stops[-1] + 1], [*threads, 1], [1] * count + [0])
    timeline = tf_libra.simulate(padded, plan, cost)
    assert timeline.backward_seconds == pytest.approx(
        reference.simulate(profile, cost, stops, threads), rel=1e-9
    )


@many
@given(planned(reference.profiles(updates=True)), reference.any_costs(THREADS), st.booleans())
def test_updates_wait_for_their_group_and_for_backward(case, cost, after_backward):
    """Without contention: Johnson's two machines, the link and the processor, in one order."""
    profile, plan = case[0], replace(case[1], after_backward=after_backward)
    free = cost.contention_free()
    timeline = tf_libra.simulate(profile, plan, free)
    without = tf_libra.BackwardProfile.from_arrays(profile.num_bytes, profile.compute_seconds)
    for predicted, other in zip(
        tf_libra.simulate(without, plan, free).groups, timeline.groups, strict=True
    ):
        assert vars(other) == pytest.approx(vars(predicted), rel=1e-9, abs=1e-12)
    clock = float(profile.compute_after[0])
    for group, span in zip(plan.groups, timeline.groups, strict=True):
        tensors = profile.tensors[group.start : group.stop]
        clock = max(clock, span.end_seconds) + sum(tensor.update_seconds for tensor in tensors)
    assert timeline.step_seconds == pytest.approx(clock, rel=1e-9)


@many
@given(planned(reference.profiles()), reference.any_costs(THREADS))
def test_without_updates_the_step_ends_with_backward(case, cost):
    timeline = tf_libra.simulate(*case, cost)
    assert timeline.step_seconds == timeline.backward_seconds


def test_updates_contend_with_residual_communication():
    # The second group is sent while the first is updated: 2 s at half the speed.
    profile = tf_libra.BackwardProfile.from_arrays([1, 6], [1, 2], update_seconds=[2, 3])
    cost = tf_libra.ContentionModel(2, 0.0, (1.0, 0.5), (1.0, 0, 0), (2.0, 0, 0))
    timeline = tf_libra.simulate(profile, plan_of(profile, [1, 2], [1, 1]), cost)
    # Backward: 1 s, 1 s concurrent with the first group (half a second of work), 1.5 s.
    assert timeline.computation_end_seconds == pytest.approx(3.5)
    # 4 of the 6 bytes during the update, 2 alone at twice the rate; then its own update.
    assert timeline.backward_seconds == pytest.approx(3.5 + 4 + 1)
    assert timeline.step_seconds == pytest.approx(8.5 + 3)


def test_mg_cf_is_free_of_contention():
    profile = tf_libra.BackwardProfile.from_arrays([10**6] * 4, [1e-3] * 4)
    cost = tf_libra.ContentionModel(4, 1e-5, (1.0, 0.1), (1e9, 0, 0), (2e9, 0, 0))
    plan = plan_of(profile, [1, 2, 3, 4], [4] * 4)
    free = tf_libra.simulate(profile, plan, cost.contention_free())
    alone = float(cost.exclusive_all_reduce(10**6, 4))
    # Each all-reduce is shorter than a tensor's computation, hence hidden but for the last.
    assert alone < 1e-3
    assert free.backward_seconds == pytest.approx(4e-3 + alone)
    assert free.backward_seconds < tf_libra.simulate(profile, plan, cost).backward_seconds


def test_single_worker_communicates_in_zero_time():
    profile = tf_libra.BackwardProfile.from_arrays([10**6] * 3, [1e-3] * 3)
    cost = tf_libra.ContentionModel(1, 1e-3, (1.0, 0.1), (1e9, 0, 0), (1e9, 0, 0))
    timeline = tf_libra.simulate(profile, plan_of(profile, [1, 2, 3], [4] * 3), cost)
    assert timeline.backward_seconds == pytest.approx(3e-3)


def test_plan_of_other_tensors_is_rejected():
    profile = tf_libra.BackwardProfile.from_arrays([1, 2], [1.0, 1.0])
    other = tf_libra.BackwardProfile.from_arrays([1, 3], [1.0, 1.0])
    cost = tf_libra.ContentionModel(2, 1e-3, (1.0, 0.1), (1e9, 0, 0), (1e9, 0, 0))
    with pytest.raises(ValueError, match=r"plan.*profile's 2 tensors"):
        tf_libra.simulate(other, plan_of(profile, [2], [1]), cost)


def test_threads_without_positive_rate_are_rejected():
    profile = tf_libra.BackwardProfile.from_arrays([1], [1.0])
    cost = tf_libra.ContentionModel(2, 1e-3, (1.0, 0.0), (1e9, 2e9, 0.5), (1e9, 0, 0))
    with pytest.raises(ValueError, match=r"overlapped: .*positive at r = 1"):
        tf_libra.simulate(profile, plan_of(profile, [1], [1]), cost)
