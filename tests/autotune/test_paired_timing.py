"""Relative step times from adjacent steps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import num_examples
from tf_libra.autotune.paired_timing import estimate_paired_timings

turns = st.integers(2, 6).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.lists(st.permutations(range(count)), min_size=2, max_size=6),
        st.lists(st.floats(0.05, 2.0), min_size=count, max_size=count),
    )
)


@settings(max_examples=num_examples(60), deadline=None)
@given(turns, st.floats(0.1, 10.0))
def test_ratios_without_noise_are_exact_at_any_speed(case, pace: float) -> None:
    count, rounds, true = case
    plans = [index for of_round in rounds for index in of_round]
    found = estimate_paired_timings(plans, [pace * true[index] for index in plans], count)
    expected = np.log(true) - np.mean(np.log(true))
    np.testing.assert_allclose(found.log_seconds, expected, atol=1e-6)
    for plan in range(count):
        for other in range(count):
            ratio = found.ratio(plan, other)
            assert ratio == pytest.approx(true[plan] / true[other], rel=1e-5)


@settings(max_examples=num_examples(60), deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 47), st.floats(1.1, 3.0))
def test_single_speed_change_does_not_affect_ratios(seed: int, when: int, pace: float) -> None:
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


def test_p_values_are_calibrated() -> None:
    """Few equal plans differ significantly; all clearly different plans do."""
    reported, equal = 0, 300
    for seed in range(equal):
        random = np.random.default_rng(seed)
        plans = [index for _ in range(8) for index in random.permutation(3).tolist()]
        seconds = np.exp(0.05 * random.standard_normal(len(plans)))
        reported += estimate_paired_timings(plans, seconds.tolist(), 3).p_value(0, 1) < 0.05
        slower = seconds * np.where(np.array(plans) == 0, 1.5, 1.0)
        assert estimate_paired_timings(plans, slower.tolist(), 3).p_value(0, 1) < 0.01
    assert reported / equal < 0.1


def test_p_value_tests_the_requested_ratio() -> None:
    random = np.random.default_rng(0)
    plans = [index for _ in range(10) for index in random.permutation(2).tolist()]
    seconds = [(1.1, 1.0)[index] * np.exp(0.002 * random.standard_normal()) for index in plans]
    found = estimate_paired_timings(plans, seconds, 2)
    assert found.p_value(0, 1) < 0.01
    assert found.p_value(0, 1, log_ratio=np.log(1.05)) < 0.01
    assert found.p_value(0, 1, log_ratio=np.log(1.15)) > 0.99


@settings(max_examples=num_examples(60), deadline=None)
@given(st.integers(0, 10_000), st.floats(0.9, 1.1), st.floats(0.001, 0.1))
def test_confidence_limits_exclude_one_for_significant_differences(
    seed: int, ratio: float, error: float
) -> None:
    random = np.random.default_rng(seed)
    plans = [index for _ in range(6) for index in random.permutation(3).tolist()]
    seconds = np.exp(0.02 * random.standard_normal(18)) * np.where(np.array(plans) == 0, ratio, 1)
    found = estimate_paired_timings(plans, seconds.tolist(), 3)
    low, high = found.ratio_limits(0, 1, error)
    assert low < found.ratio(0, 1) < high
    assert (low > 1) == (found.p_value(0, 1) < error)
    assert (high < 1) == (found.p_value(1, 0) < error)


def test_confidence_limits_hold_the_true_ratio() -> None:
    missed, count = 0, 300
    for seed in range(count):
        random = np.random.default_rng(seed)
        plans = [index for _ in range(8) for index in random.permutation(4).tolist()]
        seconds = np.exp(0.03 * random.standard_normal(32)) * (1 + 0.1 * np.array(plans))
        low, high = estimate_paired_timings(plans, seconds.tolist(), 4).ratio_limits(3, 0, 0.05)
        missed += not low <= 1.3 <= high
    assert missed / count < 0.17


def test_limits_of_too_few_steps_are_finite() -> None:
    for error in (0.05, 1e-6):
        for plans in ([0, 1], [0, 1, 1, 0], [0, 1, 0, 1]):
            seconds = [1.0, 5.0, 0.1, 40.0][: len(plans)]
            found = estimate_paired_timings(plans, seconds, 2)
            low, high = found.ratio_limits(1, 0, error)
            assert 0 < low < 1 < high < np.inf


def test_too_few_steps_are_not_significant() -> None:
    assert estimate_paired_timings([0, 1], [1.0, 2.0], 2).p_value(1, 0) == 1.0
    assert estimate_paired_timings([0], [1.0], 1).degrees_of_freedom == 0
