"""Comparison of plans by adjacent steps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_libra.autotune.paired_timing import estimate_paired_timings

turns = st.integers(2, 6).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.lists(st.permutations(range(count)), min_size=2, max_size=6),
        st.lists(st.floats(0.05, 2.0), min_size=count, max_size=count),
    )
)


@settings(max_examples=60, deadline=None)
@given(turns, st.floats(0.1, 10.0))
def test_without_noise_it_says_what_is_true_whatever_the_pace(case, pace: float) -> None:
    count, rounds, true = case
    plans = [index for of_round in rounds for index in of_round]
    found = estimate_paired_timings(plans, [pace * true[index] for index in plans], count)
    expected = np.log(true) - np.mean(np.log(true))
    np.testing.assert_allclose(found.log_seconds, expected, atol=1e-6)
    for plan in range(count):
        for other in range(count):
            ratio, _ = found.ratio_and_p_value(plan, other)
            assert ratio == pytest.approx(true[plan] / true[other], rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 47), st.floats(1.1, 3.0))
def test_one_change_of_pace_says_nothing_of_any_plan(seed: int, when: int, pace: float) -> None:
    random = np.random.default_rng(seed)
    true = 1 + 0.1 * random.random(4)
    plans = [index for _ in range(12) for index in random.permutation(4).tolist()]
    noise = np.exp(0.002 * random.standard_normal(len(plans)))
    seconds = [
        true[index] * noise[place] * (pace if place >= when else 1.0)
        for place, index in enumerate(plans)
    ]
    found = estimate_paired_timings(plans, seconds, 4)
    expected = np.log(true) - np.mean(np.log(true))
    np.testing.assert_allclose(found.log_seconds, expected, atol=0.008)


def test_it_is_as_sure_as_it_says() -> None:
    """Few of the plans that are equal differ significantly; all that differ clearly do."""
    told, equal = 0, 300
    for seed in range(equal):
        random = np.random.default_rng(seed)
        plans = [index for _ in range(8) for index in random.permutation(3).tolist()]
        seconds = np.exp(0.05 * random.standard_normal(len(plans)))
        told += estimate_paired_timings(plans, seconds.tolist(), 3).p_value(0, 1) < 0.05
        slower = seconds * np.where(np.array(plans) == 0, 1.5, 1.0)
        assert estimate_paired_timings(plans, slower.tolist(), 3).p_value(0, 1) < 0.01
    assert told / equal < 0.1


def test_how_much_longer_is_asked_for() -> None:
    random = np.random.default_rng(0)
    plans = [index for _ in range(10) for index in random.permutation(2).tolist()]
    seconds = [(1.1, 1.0)[index] * np.exp(0.002 * random.standard_normal()) for index in plans]
    found = estimate_paired_timings(plans, seconds, 2)
    assert found.p_value(0, 1) < 0.01
    assert found.p_value(0, 1, log_ratio=np.log(1.05)) < 0.01
    assert found.p_value(0, 1, log_ratio=np.log(1.15)) > 0.99


def test_too_few_steps_say_nothing_for_sure() -> None:
    assert estimate_paired_timings([0, 1], [1.0, 2.0], 2).p_value(1, 0) == 1.0
    assert estimate_paired_timings([0], [1.0], 1).degrees_of_freedom == 0
