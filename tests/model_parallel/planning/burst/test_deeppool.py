import itertools
import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.model_parallel.planning.burst import reference
from tf_libra.model_parallel.planning.burst import branch_blocks

LIMITS = (1.0, 1.3, 1.7, 2.5, 4.0)


def check(scaling, model):
    found = reference.best(scaling, model, LIMITS)
    seconds = []
    for limit, (least, best) in zip(LIMITS, found, strict=True):
        plan = tf_libra.make_burst_plan(scaling, max_amplification=limit)
        assert plan.iteration_seconds == pytest.approx(best, rel=1e-9, abs=1e-12)
        if least is None:
            assert not any("no plan" in note for note in plan.notes)
            assert max(plan.amplification) <= limit * (1 + 1e-9)
            seconds.append(plan.iteration_seconds)
        else:
            assert any("no plan" in note for note in plan.notes)
            assert max(plan.amplification) == pytest.approx(least, rel=1e-9)
    # A wider limit never makes the plan slower.
    seconds.append(tf_libra.make_burst_plan(scaling).iteration_seconds)
    for tight, wide in itertools.pairwise(seconds):
        assert wide <= tight * (1 + 1e-9)


@settings(max_examples=num_examples(80), deadline=None)
@given(reference.chains())
def test_chains_equal_brute_force(case):
    check(*case)


@settings(max_examples=num_examples(150), deadline=None)
@given(reference.branching())
def test_branching_models_equal_brute_force(case):
    check(*case)


@settings(max_examples=num_examples(150), deadline=None)
@given(reference.branching())
def test_bounds_of_large_blocks_leave_the_best_in(case):
    # The limit of enumeration is set below any block's number of choices.
    with mock.patch.multiple(branch_blocks, _FEW=0, _CHUNK=3):
        check(*case)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4))
def test_large_blocks_are_planned_as_if_every_way_were_tried(seed, width):
    rng = np.random.default_rng(seed)
    counts = np.array([1, 2, 4, 8])
    edges, last, layers = [], 0, 1
    for _ in range(2):
        ends = []
        for _ in range(width):
            end = last
            for _ in range(int(rng.integers(1, 3))):
                edges.append((end, layers))
                end, layers = layers, layers + 1
            ends.append(end)
        edges += [(end, layers) for end in ends]
        last, layers = layers, layers + 1
    compute = rng.uniform(0.5, 2, (layers, 1)) * (rng.uniform(0.2, 1, (layers, 1)) / counts + 0.05)
    moves = rng.uniform(0, 0.1, (len(edges), 4, 4))
    scaling = tf_libra.ScalingProfile.graph(
        counts, compute, np.zeros((layers, 4)), edges, moves * (1 - np.eye(4)), moves
    )
    for limit in (1.5, 2.0, 3.0, 5.0, None):
        with mock.patch.object(branch_blocks, "_FEW", 0):
            bounded = tf_libra.make_burst_plan(scaling, max_amplification=limit)
        with mock.patch.object(branch_blocks, "_FEW", 10**6):
            every = tf_libra.make_burst_plan(scaling, max_amplification=limit)
        assert bounded.iteration_seconds == pytest.approx(every.iteration_seconds, rel=1e-9)


@settings(max_examples=num_examples(60), deadline=None)
@given(reference.chains(max_layers=6), st.sampled_from([None, 1.0, 1.5, 2.0, 5.0]))
def test_times_of_a_plan_for_a_chain_match_the_profile(case, limit):
    scaling, _ = case
    plan = tf_libra.make_burst_plan(scaling, max_amplification=limit)
    at = [scaling.device_counts.index(g) for g in plan.num_devices]
    seconds = used = 0.0
    for i, (g, n) in enumerate(zip(at, plan.num_devices, strict=True)):
        entering = scaling.transition_seconds[i - 1, at[i - 1], g] if i else 0.0
        occupied = entering + scaling.compute_seconds[i, g] + scaling.synchronize_seconds[i, g]
        seconds += occupied
        used += n * occupied
        if scaling.compute_seconds[i, 0]:
            expected = n * occupied / scaling.compute_seconds[i, 0]
            assert plan.amplification[i] == pytest.approx(expected, rel=1e-12)
        assert plan.transition_seconds[i] == pytest.approx(entering, abs=1e-12)
    assert plan.iteration_seconds == pytest.approx(seconds, rel=1e-12)
    assert plan.device_seconds == pytest.approx(used, rel=1e-12)


@settings(max_examples=num_examples(150), deadline=None)
@given(reference.branching(), st.sampled_from([None, 1.0, 1.5, 2.0, 5.0]))
def test_times_of_a_plan_for_branches_match_the_profile(case, limit):
    scaling, _ = case
    plan = tf_libra.make_burst_plan(scaling, max_amplification=limit)
    at = [scaling.device_counts.index(n) for n in plan.num_devices]
    entering = [0.0] * scaling.num_layers
    for edge, (source, target) in enumerate(scaling.edges):
        moved = plan.lanes[source] != plan.lanes[target]
        times = scaling.move_seconds if moved else scaling.transition_seconds
        entering[target] += times[edge, at[source], at[target]]
    assert plan.transition_seconds == pytest.approx(entering, rel=1e-9, abs=1e-9)
    used = 0.0
    for layer, (g, n) in enumerate(zip(at, plan.num_devices, strict=True)):
        own = scaling.compute_seconds[layer, g] + scaling.synchronize_seconds[layer, g]
        occupied = n * (entering[layer] + own)
        used += occupied
        alone = scaling.compute_seconds[layer, 0]
        expected = occupied / alone if alone else (math.inf if occupied else 1.0)
        assert plan.amplification[layer] == pytest.approx(expected, rel=1e-12)
    assert plan.device_seconds == pytest.approx(used, rel=1e-12)


@settings(max_examples=num_examples(60), deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_free_transitions_without_limit_are_data_parallelism(layers, seed):
    rng = np.random.default_rng(seed)
    counts = np.array([1, 2, 4, 8])
    # Every layer is fastest on the same number of devices, which is not the largest.
    useful = int(rng.integers(1, 4))
    compute = rng.random((layers, 1)) / np.minimum(counts, counts[useful]) + 0.01
    compute[:, useful + 1 :] *= 1.1
    scaling = tf_libra.ScalingProfile.chain(
        counts, compute, np.zeros((layers, 4)), np.zeros((layers - 1, 4, 4))
    )
    plan = tf_libra.make_burst_plan(scaling)
    assert set(plan.num_devices) == {int(counts[useful])}
    same = tf_libra.make_burst_plan(scaling, "data-parallel")
    assert same.num_devices == plan.num_devices
    assert same.iteration_seconds == pytest.approx(plan.iteration_seconds, rel=1e-12)


def test_algorithm_1_stores_one_predecessor_and_misses_the_plan():
    # Layer 1 on 2 devices is reached soonest from 1 device, by a transition that exceeds the limit.
    # From 2 devices it takes half a second more and keeps the limit; Algorithm 1 drops that path.
    scaling = tf_libra.ScalingProfile.chain(
        [1, 2],
        compute_seconds=[[4.0, 5.0], [4.0, 5.8], [20.0, 10.0]],
        synchronize_seconds=np.zeros((3, 2)),
        transition_seconds=[[[0.0, 0.5], [8.0, 0.0]], [[0.0, 8.0], [8.0, 0.0]]],
    )
    exact = tf_libra.make_burst_plan(scaling, max_amplification=3.0)
    printed = tf_libra.make_burst_plan(scaling, "search-linear", max_amplification=3.0)
    assert exact.num_devices == (2, 2, 2)
    assert exact.iteration_seconds == pytest.approx(20.8)
    assert printed.num_devices == (1, 1, 2)
    assert printed.iteration_seconds == pytest.approx(26.0)


def test_algorithm_1_may_exceed_a_limit_that_another_plan_satisfies():
    scaling = tf_libra.ScalingProfile.chain(
        [1, 2],
        compute_seconds=[[8.0, 4.0], [4.0, 5.0]],
        synchronize_seconds=np.zeros((2, 2)),
        transition_seconds=[[[0.0, 1.0], [2.0, 0.0]]],
    )
    assert max(tf_libra.make_burst_plan(scaling, max_amplification=1.25).amplification) == 1.0
    printed = tf_libra.make_burst_plan(scaling, "search-linear", max_amplification=1.25)
    assert max(printed.amplification) == 2.5


@settings(max_examples=num_examples(80), deadline=None)
@given(reference.chains(max_layers=5))
def test_algorithm_1_is_the_shortest_path_where_nothing_is_forbidden(case):
    scaling, _ = case
    printed = tf_libra.make_burst_plan(scaling, "search-linear")
    exact = tf_libra.make_burst_plan(scaling)
    assert printed.iteration_seconds == pytest.approx(exact.iteration_seconds, rel=1e-9, abs=1e-12)


def test_a_transition_waits_for_a_lane_that_is_on_the_devices_that_it_leads_to():
    # Layers 1 and 2 run in parallel on one device each, layer 3 runs on both devices.
    transitions, moves = np.zeros((4, 2, 2)), np.zeros((4, 2, 2))
    transitions[2, :, 1] = 1
    moves[[0, 2]] = 5
    scaling = tf_libra.ScalingProfile.graph(
        (1, 2),
        [[1, 1], [1, 1], [4, 4], [4, 2]],
        np.zeros((4, 2)),
        [(0, 1), (0, 2), (1, 3), (2, 3)],
        transitions,
        moves,
    )
    plan = tf_libra.make_burst_plan(scaling)
    assert (plan.num_devices, plan.first_devices) == ((1, 1, 1, 2), (0, 0, 1, 0))
    began = {(span.kind, span.layer, span.source): span.start_seconds for span in plan.spans}
    assert began["compute", 2, None] == 1
    assert began["transition", 3, 1] == 5
    assert plan.iteration_seconds == 8


@settings(max_examples=num_examples(300), deadline=None)
@given(reference.branching(), st.sampled_from([None, 1.0, 1.5, 4.0]))
def test_no_device_runs_two_tasks_concurrently(case, limit):
    plan = tf_libra.make_burst_plan(case[0], max_amplification=limit)
    spans = [span for span in plan.spans if span.seconds > 1e-9]
    for first, other in itertools.combinations(spans, 2):
        if (
            first.start_seconds < other.stop_seconds - 1e-9
            and other.start_seconds < first.stop_seconds - 1e-9
        ):
            assert first.lane != other.lane
            used = [
                range(
                    plan.first_devices[span.layer],
                    plan.first_devices[span.layer] + plan.num_devices[span.layer],
                )
                for span in (first, other)
            ]
            assert not set(used[0]) & set(used[1])
    assert max(span.stop_seconds for span in plan.spans) == pytest.approx(plan.iteration_seconds)
    whole = plan.device_counts[-1] * plan.iteration_seconds
    assert plan.device_seconds + sum(plan.idle_seconds) == pytest.approx(whole, rel=1e-9, abs=1e-9)
    # A span starts after all of its inputs.
    begins = {span.layer: span.start_seconds for span in plan.spans if span.kind == "compute"}
    for span in plan.spans:
        if span.kind == "transition":
            assert span.stop_seconds <= begins[span.layer] + 1e-9
            assert span.start_seconds >= begins[span.source] - 1e-9


def test_a_layer_that_costs_nothing_amplifies_nothing():
    scaling = tf_libra.ScalingProfile.chain(
        [1, 2], [[1.0, 0.5], [0.0, 0.0]], np.zeros((2, 2)), [[[0.0, 0.1], [0.1, 0.0]]]
    )
    plan = tf_libra.make_burst_plan(scaling, max_amplification=1.0)
    assert plan.num_devices == (2, 2)
    assert plan.amplification == (1.0, 1.0)


def test_plan_without_a_bound_has_a_note():
    # Layer 1 costs nothing on one device, but its incoming transition costs time on any devices.
    scaling = tf_libra.ScalingProfile.chain(
        [1, 2], [[1.0, 0.5], [0.0, 0.0]], np.zeros((2, 2)), [[[0.1, 0.2], [0.1, 0.3]]]
    )
    plan = tf_libra.make_burst_plan(scaling, max_amplification=2.0)
    assert math.isinf(max(plan.amplification))
    assert plan.notes
    assert tf_libra.BurstPlan.from_json(plan.to_json()) == plan


def test_several_first_and_last_layers():
    towers = tf_libra.ScalingProfile.graph(
        [1, 2],
        [[4.0, 2.0], [4.0, 2.0], [1.0, 1.0], [2.0, 1.0], [2.0, 1.0]],
        np.zeros((5, 2)),
        [(0, 2), (1, 2), (2, 3), (2, 4)],
        np.zeros((4, 2, 2)),
        np.zeros((4, 2, 2)),
    )
    plan = tf_libra.make_burst_plan(towers)
    # Layers in parallel on one device each take as long as in sequence on both devices.
    assert plan.iteration_seconds == pytest.approx(4 + 1 + 2)
    assert len(plan.num_devices) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_amplification": 0.99}, "max_amplification must be at least 1, got 0.99"),
        ({"max_amplification": math.inf}, "max_amplification must be a finite number, got inf"),
        ({"max_amplification": math.nan}, "max_amplification must be a finite number, got nan"),
        ({"max_amplification": "2"}, "max_amplification must be a finite number, got '2'"),
        ({"strategy": "deepool"}, "strategy must be one of .*, got 'deepool'"),
        ({"strategy": ["deeppool"]}, "strategy must be a name or an object of a burst strategy"),
        ({"num_devices": 2}, "num_devices is no argument of deeppool"),
        ({"strategy": "data-parallel", "num_devices": 3}, r"num_devices must be one of \(1, 2\)"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    scaling = tf_libra.ScalingProfile.chain([1, 2], [[1.0, 0.5]], [[0.0, 0.0]], [])
    with pytest.raises(ValueError, match=message):
        tf_libra.make_burst_plan(scaling, **arguments)
