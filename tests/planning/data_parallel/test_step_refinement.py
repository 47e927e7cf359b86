"""Plans for the step, updates included, against brute force."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tf_libra import strategies
from tf_libra.planning.data_parallel import step_refinement
from tf_libra.planning.data_parallel.step_refinement import even_groups, least_step
from tf_libra.planning.strategy import groups_from_stops
from tf_libra.simulation.vectorized import vectorized_steps
from tf_libra.specs.plan import Plan

THREADS = (1, 2, 5)
K = 3


def step(profile, cost, stops, threads):
    plan = Plan.for_profile(profile, groups_from_stops(stops, threads), cost.num_workers, "x")
    return tf_libra.simulate(profile, plan, cost).step_seconds


def step_of(profile, cost, plan):
    return tf_libra.simulate(profile, plan, cost).step_seconds


def problem(seed):
    rng = random.Random(seed)
    count = rng.randint(2, 5)
    profile = tf_libra.BackwardProfile.from_arrays(
        [rng.choice([0, *(rng.randint(1, 5_000_000) for _ in range(2))]) for _ in range(count)],
        [rng.choice([0, rng.uniform(1e-4, 1e-2)]) for _ in range(count)],
        update_seconds=[rng.choice([0, rng.uniform(1e-4, 3e-3)]) for _ in range(count)],
    )
    alpha1, slower = rng.uniform(0.3, 1), rng.uniform(1, 1.5)
    rate, share, gamma3 = rng.uniform(1e8, 5e9), rng.uniform(0, 0.95), rng.uniform(0, 2)
    cost = tf_libra.ContentionModel(
        rng.choice([2, 8]),
        rng.choice([0, 1e-5, 1e-4]),
        (alpha1, rng.uniform(0, 0.95) * alpha1 / max(THREADS)),
        (rate / slower, share * rate / slower, gamma3),
        (rate, share * rate, gamma3),
    )
    return profile, cost


@pytest.mark.parametrize("exact", [False, True])
def test_libra_finds_the_shortest_step_of_small_problems(exact):
    strategy = strategies.Libra(threads=THREADS, max_groups=K, exact=exact)
    over = []
    for seed in range(40):
        profile, cost = problem(seed)
        plan = tf_libra.make_plan(profile, cost, strategy)
        best = min(
            step(profile, cost, stops, threads)
            for stops in reference.all_stops(len(profile.tensors), K)
            for threads in itertools.product(THREADS, repeat=len(stops))
        )
        over.append(step_of(profile, cost, plan) / best - 1)
    assert sorted(over)[35] < 1e-9  # nine of ten
    assert max(over) < 0.05


@settings(max_examples=num_examples(60), deadline=None)
@given(reference.profiles(updates=True), reference.lawful_costs(THREADS), st.integers(1, 4))
def test_step_is_no_longer_than_of_the_shortest_backward(profile, cost, max_groups):
    without = tf_libra.BackwardProfile.from_arrays(profile.num_bytes, profile.compute_seconds)
    strategy = strategies.Libra(threads=THREADS, max_groups=max_groups)
    plan = tf_libra.make_plan(profile, cost, strategy)
    blind = tf_libra.make_plan(without, cost, strategy)
    assert len(plan.groups) <= max_groups
    assert step_of(profile, cost, plan) <= step_of(profile, cost, blind) * (1 + 1e-9)
    timeline = tf_libra.simulate(profile, plan, cost)
    assert plan.predicted_seconds == timeline.backward_seconds


@settings(max_examples=num_examples(60), deadline=None)
@given(reference.profiles(max_tensors=4, updates=True), reference.lawful_costs((1, 5)))
def test_libra_m_chooses_threads_by_the_step(profile, cost):
    plan = tf_libra.make_plan(profile, cost, strategies.LibraM(threads=(1, 5), min_elements=0))
    stops = [group.stop for group in plan.groups]
    one_for_all = (step(profile, cost, stops, [r] * len(stops)) for r in (1, 5))
    assert step_of(profile, cost, plan) <= min(one_for_all) * (1 + 1e-9)
    # No single group is better with other threads.
    threads = [group.num_threads for group in plan.groups]
    for index, r in itertools.product(range(len(stops)), (1, 5)):
        other = [*threads[:index], r, *threads[index + 1 :]]
        assert step_of(profile, cost, plan) <= step(profile, cost, stops, other) * (1 + 1e-8)


def test_overlapping_updates_justify_another_group():
    # All gradients are ready together: without updates one group is best, a startup for each more.
    cost = tf_libra.ContentionModel(2, 1e-4, (1.0, 0.0), (1e9, 0, 0), (1e9, 0, 0))
    sizes, seconds = [10**7, 10**7], [1e-3, 0.0]
    blind = tf_libra.BackwardProfile.from_arrays(sizes, seconds)
    seeing = tf_libra.BackwardProfile.from_arrays(sizes, seconds, update_seconds=[5e-3, 5e-3])
    assert len(tf_libra.make_plan(blind, cost, strategies.Libra(threads=(1,))).groups) == 1
    plan = tf_libra.make_plan(seeing, cost, strategies.Libra(threads=(1,)))
    assert [group.stop for group in plan.groups] == [1, 2]
    assert "the step, updates included" in plan.notes[0]


@pytest.mark.parametrize(
    "strategy", [strategies.LibraM(min_elements=0), strategies.Libra(max_groups=60)]
)
def test_search_of_many_groups_is_bounded(strategy, monkeypatch):
    """All ranks wait meanwhile: what is looked at would grow with the groups' square, and cube."""
    count, most, looked = 120, 2**13, 0

    def counted(profile, cost, stops, threads):
        nonlocal looked
        looked += sum(map(len, stops))
        return vectorized_steps(profile, cost, stops, threads)

    monkeypatch.setattr(step_refinement, "_MOST_GROUPS", most)
    monkeypatch.setattr(step_refinement, "vectorized_steps", counted)
    cost = tf_libra.ContentionModel(2, 0.0, (1.0, 0.1), (1e10, 8e9, 0.3), (1e10, 8e9, 0.3))
    rng = random.Random(0)
    profile = tf_libra.BackwardProfile.from_arrays(
        [rng.randint(10**4, 10**6) for _ in range(count)],
        [rng.uniform(1e-4, 1e-3) for _ in range(count)],
        update_seconds=[rng.uniform(0, 1e-3) for _ in range(count)],
    )
    plan = tf_libra.make_plan(profile, cost, strategy)
    assert most / 4 < looked < 1.2 * most
    for r in strategy.threads:
        other = strategies.MgWfbp(num_threads=r, min_elements=0)
        assert step_of(profile, cost, plan) <= step_of(
            profile, cost, tf_libra.make_plan(profile, cost, other)
        )


def test_even_groups_have_about_equal_bytes():
    profile = tf_libra.BackwardProfile.from_arrays([10] * 100, [1.0] * 100)
    stops, threads = even_groups(profile, 4, 2)
    assert stops == (25, 50, 75, 100)
    assert threads == (2,) * 4
    assert even_groups(profile, 1, 2)[0] == (100,)


def test_fixed_groups_change_threads_only():
    profile, cost = problem(3)
    count = len(profile.tensors)
    stops, _ = least_step(profile, cost, [((1, count), (1, 1))], THREADS, None)
    assert stops == (1, count)
