import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.planning.data_parallel import reference
from tf_libra import strategies
from tf_libra.planning.data_parallel.chunks import ChunkedCosts
from tf_libra.planning.data_parallel.libra_m import allocate_threads

THREADS = (1, 2, 5)


@settings(max_examples=600, deadline=None)
@given(reference.profiles(), reference.lawful_costs(THREADS), st.integers(1, 12))
def test_is_within_the_bound_of_the_best_threads(profile, cost, chunks):
    plan = tf_libra.make_plan(profile, cost, strategies.LibraM(threads=THREADS, chunks=chunks))
    fused = tf_libra.make_plan(profile, cost, strategies.MgWfbp(num_threads=1))
    stops = [g.stop for g in plan.groups]
    assert stops == [g.stop for g in fused.groups]
    best = reference.best_threads(profile, cost, stops, THREADS)
    assert best * (1 - 1e-9) <= plan.predicted_seconds
    assert plan.predicted_seconds <= best * (1 + (len(stops) - 1) / chunks) * (1 + 1e-9)


@settings(max_examples=200, deadline=None)
@given(st.data(), reference.profiles(max_tensors=4), reference.any_costs((1, 3)))
def test_finds_what_equation_17_finds(data, profile, cost):
    stops = data.draw(st.sampled_from(list(reference.all_stops(len(profile.tensors), 4))))
    chunks = data.draw(st.integers(1, 8))
    seconds, _ = allocate_threads(profile, ChunkedCosts(profile, cost, (1, 3), chunks), stops)
    assert seconds == pytest.approx(
        reference.equation17(profile, cost, stops, chunks, (1, 3)), rel=1e-8
    )


def test_merges_for_the_threads_it_is_told():
    profile = tf_libra.BackwardProfile.from_arrays([10**6] * 8, [1e-3] * 8)
    cost = tf_libra.ContentionModel(4, 1e-4, (1.0, 0.01), (1e9, 0.95e9, 0.01), (1e9, 0.95e9, 0.01))
    for merged_for in (1, 32):
        plan = tf_libra.make_plan(
            profile, cost, strategies.LibraM(threads=(1, 8, 32), num_threads=merged_for)
        )
        fused = tf_libra.make_plan(profile, cost, strategies.MgWfbp(num_threads=merged_for))
        assert [g.stop for g in plan.groups] == [g.stop for g in fused.groups]
        assert f"r = {merged_for}" in plan.notes[0]


def test_is_no_slower_than_one_r_for_all_with_more_groups_than_chunks():
    profile = tf_libra.BackwardProfile.from_arrays([10**6] * 40, [1e-3] * 40)
    cost = tf_libra.ContentionModel(4, 1e-6, (1.0, 0.05), (4e9, 0, 0), (4e9, 0, 0))
    plan = tf_libra.make_plan(profile, cost, strategies.LibraM(threads=(1, 8), chunks=3))
    fused = tf_libra.make_plan(profile, cost, strategies.MgWfbp(num_threads=1))
    assert len(plan.groups) == len(fused.groups) > 3
    assert plan.predicted_seconds <= fused.predicted_seconds * (1 + 1e-9)
