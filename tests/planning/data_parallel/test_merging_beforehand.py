"""The adjacent tensors that could be merged before planning, by brute force."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.planning.data_parallel import reference

THREADS = (1, 8)
many = settings(max_examples=num_examples(300), deadline=None)


def best_without_cut(profile, cost, max_groups, forbidden):
    """The least time of the plans that cut at none of the forbidden places."""
    return min(
        reference.simulate(profile, cost, stops, threads)
        for stops in reference.all_stops(len(profile.tensors), max_groups)
        if forbidden.isdisjoint(stops[:-1])
        for threads in itertools.product(THREADS, repeat=len(stops))
    )


def test_tensors_produced_together_may_be_better_apart():
    # The first is hidden with one thread, the second needs eight; together they find no r.
    rate = (4e8, 3e8 * math.e, 1.0)  # 1e8 bytes per second with one thread, 4e8 with eight
    cost = tf_libra.ContentionModel(2, 0.0, (1 + 0.5 / 7, 0.5 / 7), rate, rate, exponent=1.0)
    assert reference.obeys_assumptions(cost, THREADS)
    profile = tf_libra.BackwardProfile.from_arrays([800_000, 800_000, 1], [1e-3, 0.0, 10e-3])
    best = reference.best(profile, cost, 3, THREADS)
    together = best_without_cut(profile, cost, 3, {1})
    assert together / best == pytest.approx(1.083, abs=1e-3)
    strategy = tf_libra.strategies.Libra(threads=THREADS, exact=True)
    assert tf_libra.make_plan(profile, cost, strategy).predicted_seconds == pytest.approx(best)


@many
@given(reference.profiles(), reference.any_costs(THREADS), st.integers(1, 4), st.integers(0, 3))
def test_tensors_produced_at_the_end_are_never_better_apart(profile, cost, max_groups, more):
    profile = tf_libra.BackwardProfile.from_arrays(
        [*profile.num_bytes, *[1000] * more], [*profile.compute_seconds, *[0.0] * more]
    )
    at_the_end = {
        stop for stop in range(1, len(profile.tensors)) if not profile.compute_seconds[stop:].any()
    }
    best = reference.best(profile, cost, max_groups, THREADS)
    merged = best_without_cut(profile, cost, max_groups, at_the_end)
    assert merged == pytest.approx(best, rel=1e-9)


@many
@given(reference.profiles(), reference.lawful_costs(THREADS), st.integers(1, 4))
def test_an_empty_tensor_is_never_better_apart_from_the_next(profile, cost, max_groups):
    behind_empty = {
        stop for stop in range(1, len(profile.tensors)) if profile.num_bytes[stop - 1] == 0
    }
    best = reference.best(profile, cost, max_groups, THREADS)
    merged = best_without_cut(profile, cost, max_groups, behind_empty)
    assert merged == pytest.approx(best, rel=1e-9)
