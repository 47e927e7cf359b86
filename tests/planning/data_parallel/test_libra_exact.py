from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tf_libra import strategies
from tf_libra.planning.data_parallel import libra_exact

THREADS = (1, 2, 5)
many = settings(max_examples=num_examples(400), deadline=None)


@settings(max_examples=40, deadline=None)
@given(reference.profiles(max_tensors=4), reference.any_costs((1, 5)), st.integers(1, 4))
def test_brute_force_enumerates_every_plan(profile, cost, max_groups):
    plans = list(reference.all_plans(len(profile.tensors), max_groups, (1, 5)))
    times = [reference.simulate(profile, cost, *plan) for plan in plans]
    best = reference.best(profile, cost, max_groups, (1, 5))
    assert best == pytest.approx(min(times), rel=1e-12)
    stops = plans[-1][0]
    of_stops = [time for plan, time in zip(plans, times, strict=True) if plan[0] == stops]
    best = reference.best_threads(profile, cost, stops, (1, 5))
    assert best == pytest.approx(min(of_stops), rel=1e-12)


@many
@given(reference.profiles(), reference.any_costs(THREADS), st.integers(1, 5))
def test_equals_brute_force_under_any_cost_model(profile, cost, max_groups):
    strategy = strategies.Libra(threads=THREADS, max_groups=max_groups, exact=True)
    plan = tf_libra.make_plan(profile, cost, strategy)
    best = reference.best(profile, cost, max_groups, THREADS)
    assert len(plan.groups) <= max_groups
    assert plan.predicted_seconds == pytest.approx(best, rel=1e-9)


@many
@given(reference.profiles(), reference.lawful_costs(THREADS), st.integers(1, 5))
def test_equals_brute_force_under_the_assumptions(profile, cost, max_groups):
    strategy = strategies.Libra(threads=THREADS, max_groups=max_groups, exact=True)
    plan = tf_libra.make_plan(profile, cost, strategy)
    best = reference.best(profile, cost, max_groups, THREADS)
    assert plan.predicted_seconds == pytest.approx(best, rel=1e-9)
    assert plan.notes == ()


@settings(max_examples=num_examples(300), deadline=None)
@given(reference.profiles(), reference.any_costs(THREADS), st.integers(1, 5), st.integers(1, 3))
def test_equals_brute_force_if_the_beam_drops_states(profile, cost, max_groups, states):
    strategy = strategies.Libra(threads=THREADS, max_groups=max_groups, chunks=1, exact=True)
    with mock.patch.object(libra_exact, "_BEAM", states):
        plan = tf_libra.make_plan(profile, cost, strategy)
    best = reference.best(profile, cost, max_groups, THREADS)
    assert plan.predicted_seconds == pytest.approx(best, rel=1e-9)


def test_is_no_worse_than_any_chunks_on_many_tensors():
    sizes = [(7919 * i) % 400_000 + 1 for i in range(60)]
    seconds = [((104_729 * i) % 1000) * 1e-6 for i in range(60)]
    profile = tf_libra.BackwardProfile.from_arrays(sizes, seconds)
    cost = tf_libra.ContentionModel(8, 2e-6, (1.0, 0.08), (1e9, 0.7e9, 0.5), (1.5e9, 0.8e9, 0.6))
    exact = strategies.Libra(threads=(1, 2, 4, 8), max_groups=6, exact=True)
    best = tf_libra.make_plan(profile, cost, exact).predicted_seconds
    for chunks in (10, 50, 150, 400):
        chunked = strategies.Libra(threads=(1, 2, 4, 8), max_groups=6, chunks=chunks)
        seconds = tf_libra.make_plan(profile, cost, chunked).predicted_seconds
        assert best <= seconds * (1 + 1e-12)
        assert seconds <= best * (1 + 5 / chunks)


@pytest.mark.parametrize(
    ("overlapped", "compute", "word"),
    [((4e9, 0, 0), (1.0, 0.1), "Assumption 2"), ((2e8, 0, 0), (0.5, 0.1), "Assumption 3")],
)
def test_notes_name_the_failed_assumption(overlapped, compute, word):
    profile = tf_libra.BackwardProfile.from_arrays([10**6] * 3, [1e-3] * 3)
    cost = tf_libra.ContentionModel(2, 1e-5, compute, overlapped, (1e9, 0, 0))
    plan = tf_libra.make_plan(profile, cost, strategies.Libra(threads=(1, 2), exact=True))
    assert any(word in note for note in plan.notes)
