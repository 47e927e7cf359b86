import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tf_libra import strategies
from tf_libra.planning.data_parallel.chunked_costs import ChunkedCosts
from tf_libra.planning.data_parallel.libra_m import allocate_threads

THREADS = (1, 2, 5)


@settings(max_examples=num_examples(300), deadline=None)
@given(
    reference.profiles(),
    reference.lawful_costs(THREADS),
    st.integers(1, 12),
    st.sampled_from([0, 8192]),
)
def test_is_within_the_bound_of_the_best_threads(profile, cost, chunks, min_elements):
    plan = tf_libra.make_plan(
        profile, cost, strategies.LibraM(threads=THREADS, chunks=chunks, min_elements=min_elements)
    )
    fused = tf_libra.make_plan(
        profile, cost, strategies.MgWfbp(num_threads=1, min_elements=min_elements)
    )
    stops = [g.stop for g in plan.groups]
    assert stops == [g.stop for g in fused.groups]
    best = reference.best_threads(profile, cost, stops, THREADS)
    assert best * (1 - 1e-9) <= plan.predicted_seconds
    chunks = max(chunks, 10 * (len(stops) - 1))
    assert plan.predicted_seconds <= best * (1 + (len(stops) - 1) / chunks) * (1 + 1e-9)


@settings(max_examples=num_examples(200), deadline=None)
@given(st.data(), reference.profiles(max_tensors=4), reference.any_costs((1, 3)))
def test_threads_equal_equation_17(data, profile, cost):
    stops = data.draw(st.sampled_from(list(reference.all_stops(len(profile.tensors), 4))))
    chunks = data.draw(st.integers(1, 8))
    seconds, _ = allocate_threads(profile, ChunkedCosts(profile, cost, (1, 3), chunks), stops)
    assert seconds == pytest.approx(
        reference.equation17(profile, cost, stops, chunks, (1, 3)), rel=1e-8
    )


def test_merging_uses_the_requested_threads():
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
    few = strategies.LibraM(threads=(1, 8), chunks=3, chunks_per_group=0)
    plan = tf_libra.make_plan(profile, cost, few)
    fused = tf_libra.make_plan(profile, cost, strategies.MgWfbp(num_threads=1))
    assert len(plan.groups) == len(fused.groups) > 3
    assert plan.predicted_seconds <= fused.predicted_seconds * (1 + 1e-9)


def test_chunks_grow_with_the_groups():
    strategy = strategies.LibraM(chunks=150)
    assert [strategy.chunks_for(groups) for groups in (1, 10, 16, 17, 271)] == [
        150, 150, 150, 160, 2700,
    ]  # fmt: skip
    assert strategies.LibraM(chunks=7, chunks_per_group=0).chunks_for(271) == 7
    assert strategy.chunks_for(10**6) == 150  # else its table would fill memory


def test_more_chunks_find_better_threads():
    rng = random.Random(258)
    profile = tf_libra.BackwardProfile.from_arrays(
        [rng.randint(10**5, 10**7) for _ in range(20)], [rng.uniform(0, 2e-3) for _ in range(20)]
    )
    rate = (4e9, 3e9, 0.3)
    cost = tf_libra.ContentionModel(4, 1e-6, (1.0, 0.08), rate, rate)
    fixed, grown = (
        tf_libra.make_plan(
            profile, cost, strategies.LibraM(threads=(1, 2, 4, 8), chunks=3, chunks_per_group=each)
        )
        for each in (0, 10)
    )
    assert [g.stop for g in fixed.groups] == [g.stop for g in grown.groups]
    assert grown.predicted_seconds < 0.95 * fixed.predicted_seconds


@pytest.mark.parametrize("field", ["chunks_per_group", "min_elements"])
def test_wrong_argument_is_named(field):
    with pytest.raises(ValueError, match=f"{field} must be from 0"):
        strategies.LibraM(**{field: -1})
