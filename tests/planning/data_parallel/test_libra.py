import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tf_libra import strategies

THREADS = (1, 2, 5)
many = settings(max_examples=num_examples(300), deadline=None)


def stops_and_threads(plan):
    return [g.stop for g in plan.groups], [g.num_threads for g in plan.groups]


@many
@given(reference.profiles(), reference.lawful_costs(THREADS), st.integers(1, 4), st.integers(1, 12))
def test_plan_is_within_libra_s_bound(profile, cost, max_groups, chunks):
    strategy = strategies.Libra(threads=THREADS, max_groups=max_groups, chunks=chunks)
    plan = tf_libra.make_plan(profile, cost, strategy)
    groups = min(max_groups, len(profile.tensors))
    best = reference.best(profile, cost, groups, THREADS)
    assert len(plan.groups) <= groups
    assert best * (1 - 1e-9) <= plan.predicted_seconds
    assert plan.predicted_seconds <= best * (1 + (groups - 1) / chunks) * (1 + 1e-9)


def test_single_group_uses_the_best_threads():
    profile = tf_libra.BackwardProfile.from_arrays([10**6, 10**6], [1e-3, 1e-3])
    cost = tf_libra.ContentionModel(4, 1e-4, (1.0, 0.1), (1e9, 0.9e9, 0.2), (2e9, 1e9, 0.4))
    plan = tf_libra.make_plan(profile, cost, strategies.Libra(threads=(4, 1, 2), max_groups=1))
    assert stops_and_threads(plan) == ([2], [4])
    assert plan.predicted_seconds == pytest.approx(
        2e-3 + float(cost.exclusive_all_reduce(2 * 10**6, 4)), rel=1e-12
    )


def test_ties_go_to_one_group_and_fewest_threads():
    profile = tf_libra.BackwardProfile.from_arrays([8, 8, 8], [1e-3, 1e-3, 1e-3])
    cost = tf_libra.ContentionModel(1, 1e-4, (1.0, 0.0), (1e9, 0, 0), (1e9, 0, 0))
    plan = tf_libra.make_plan(profile, cost, strategies.Libra(threads=(1, 2, 4)))
    assert stops_and_threads(plan) == ([3], [1])


def test_max_groups_is_limited_by_tensors():
    profile = tf_libra.BackwardProfile.from_arrays([10**6] * 3, [1e-2] * 3)
    cost = tf_libra.ContentionModel(4, 1e-6, (1.0, 0.1), (1e9, 0.9e9, 0.2), (2e9, 1e9, 0.4))
    few = tf_libra.make_plan(profile, cost, strategies.Libra(threads=THREADS, max_groups=3))
    many = tf_libra.make_plan(profile, cost, strategies.Libra(threads=THREADS, max_groups=300))
    assert few.groups == many.groups


def test_rate_that_is_not_positive_is_rejected():
    profile = tf_libra.BackwardProfile.from_arrays([10], [1.0])
    cost = tf_libra.ContentionModel(2, 0.0, (1.0, 0.5), (1e9, 0, 0), (1e9, 0, 0))
    with pytest.raises(ValueError, match=r"alpha1 - alpha2.*positive at r = 2"):
        tf_libra.make_plan(profile, cost, strategies.Libra(threads=(1, 2)))
