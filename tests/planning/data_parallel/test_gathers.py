"""Planned gathers against brute force over all groups and threads."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tests.simulation.test_gathers import gathers_of, with_forward
from tf_libra.planning.data_parallel.gathers import plan_gathers
from tf_libra.simulation import simulate

THREADS = (1, 3)


def delay_of(profile, cost, gathers):
    """Returns the seconds that gathers add to the forward pass."""
    plan = dataclasses.replace(tf_libra.make_plan(profile, cost, "syneasgd"), gathers=gathers)
    return simulate(profile, plan, cost).forward_delay_seconds


def least_delay(profile, cost, max_groups):
    count = len(profile.tensors)
    return min(
        delay_of(profile, cost, gathers_of([0, *stops], threads))
        for stops in reference.all_stops(count, max_groups)
        for threads in itertools.product(THREADS, repeat=len(stops))
    )


@settings(max_examples=num_examples(150), deadline=None)
@given(
    st.data(),
    reference.profiles(max_tensors=4),
    reference.any_costs(THREADS),
    st.integers(1, 4),
    st.sampled_from([0.0, 1e-3]),
)
def test_no_other_gathers_delay_the_forward_pass_less(data, profile, cost, max_groups, waiting):
    profile = with_forward(profile, data)
    cost = dataclasses.replace(cost, waiting=waiting)
    gathers = plan_gathers(profile, cost.one_phase(), THREADS, max_groups, None)
    assert len(gathers) <= max_groups
    forward = float(profile.forward_seconds.sum())
    least = least_delay(profile, cost, max_groups)
    found = delay_of(profile, cost, gathers)
    assert found + forward == pytest.approx(least + forward, rel=1e-9)


@settings(max_examples=num_examples(150), deadline=None)
@given(
    st.data(),
    reference.profiles(max_tensors=4),
    reference.any_costs(THREADS).filter(lambda cost: reference.obeys_assumptions(cost, THREADS)),
    st.integers(1, 4),
    st.sampled_from([1, 2, 7, 50]),
)
def test_gathers_on_chunks_keep_their_bound(data, profile, cost, max_groups, chunks):
    profile = with_forward(profile, data)
    gathers = plan_gathers(profile, cost.one_phase(), THREADS, max_groups, chunks)
    forward = float(profile.forward_seconds.sum())
    optimum = plan_gathers(profile, cost.one_phase(), THREADS, max_groups, None)
    least = delay_of(profile, cost, optimum) + forward
    groups = min(max_groups, len(profile.tensors))
    bound = 1 + (groups - 1) / chunks
    assert delay_of(profile, cost, gathers) + forward <= bound * least * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("name", ["libra", "libra-m", "wfbp", "dear", "auto"])
def test_every_strategy_may_plan_gathers(name):
    profile = tf_libra.BackwardProfile.from_arrays([10**6, 10, 10**7], [1e-3, 1e-5, 2e-3])
    cost = tf_libra.ContentionModel(4, 1e-5, (1.0, 0.1), (2e9, 0, 0), (3e9, 0, 0))
    plan = tf_libra.make_plan(profile, cost, name, gathers=True)
    assert plan.gathers
    assert any("forward pass is unknown" in note for note in plan.notes) == (name != "dear")
    known = dataclasses.replace(profile, rest_seconds=1e-3)
    found = tf_libra.make_plan(known, cost, name, gathers=True)
    assert not any("forward pass is unknown" in note for note in found.notes)
    # With nothing to overlap, one gather of all weights is the best.
    assert len(plan.gathers) == 1
    assert delay_of(known, cost, found.gathers) <= delay_of(known, cost, plan.gathers)


def test_exact_strategies_plan_optimal_gathers():
    profile = tf_libra.BackwardProfile.from_arrays(
        [10**6, 10, 10**7, 10**5], [1e-3, 1e-5, 2e-3, 1e-3], forward_seconds=[1e-3] * 4
    )
    cost = tf_libra.ContentionModel(4, 1e-5, (1.0, 0.1), (2e9, 1e9, 0.1), (3e9, 1e9, 0.1))
    exact = tf_libra.strategies.Libra(threads=THREADS, max_groups=3, exact=True)
    gathers = tf_libra.make_plan(profile, cost, exact, gathers=True).gathers
    assert delay_of(profile, cost, gathers) == pytest.approx(least_delay(profile, cost, 3))
