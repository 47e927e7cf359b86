"""Comparisons of plans by interleaved trials."""

from dataclasses import replace

import numpy as np
import pytest

from tf_libra.autotune.trial_comparison import (
    Candidate,
    Race,
    compare_with_one_all_reduce,
    compare_with_requested,
    explain_strategy_change,
)
from tf_libra.internal import formatting
from tf_libra.specs.plan import Plan, TensorGroup

TWO = Plan((TensorGroup(0, 1, 1), TensorGroup(1, 2, 2)), ("a", "b"), (4, 8), 2, "mg-wfbp")
ONE = replace(TWO, groups=(TensorGroup(0, 2, 1),), strategy="syneasgd")
ASKED = replace(TWO, groups=(TensorGroup(0, 1, 2), TensorGroup(1, 2, 2)), strategy="libra")


# Twelve rounds with noise of 0.5 %.
NOISY = tuple(np.exp(0.005 * np.random.default_rng(0).standard_normal(12)).tolist())
OTHER = tuple(np.exp(0.005 * np.random.default_rng(1).standard_normal(12)).tolist())


def times(factor: float) -> tuple[float, ...]:
    """Returns twelve noisy steps of `factor` seconds."""
    return tuple(factor * second for second in OTHER)


def race(*others: Candidate) -> Race:
    return Race((Candidate(TWO, None, NOISY), *others))


def test_one_all_reduce_is_compared_round_by_round() -> None:
    slower = Candidate(ONE, None, times(1.25))
    found = compare_with_one_all_reduce(race(slower))
    assert found is not None
    assert not found.is_noise
    assert found.low < found.ratio < found.high < 1
    assert found.ratio == pytest.approx(0.8, abs=0.01)
    assert found.num_rounds == 12
    assert "against one all-reduce after backward" in found.describe()


def test_noise_is_described_as_no_difference() -> None:
    found = compare_with_one_all_reduce(race(Candidate(ONE, None, times(1.0))))
    assert found is not None
    assert found.describe().startswith(formatting.NO_DIFFERENCE)


def test_plans_without_common_rounds_are_not_compared() -> None:
    assert compare_with_one_all_reduce(None) is None
    assert compare_with_one_all_reduce(race()) is None
    assert compare_with_one_all_reduce(race(Candidate(ASKED, None, (1.0,) * 4))) is None
    assert compare_with_one_all_reduce(race(Candidate(ONE, None, (1.0,)))) is None
    assert compare_with_one_all_reduce(Race((Candidate(ONE, None, (1.0,) * 4),))) is None


def test_confidence_limits_agree_with_the_verdict() -> None:
    for factor in (0.9, 0.99, 1.0, 1.01, 1.1):
        raced = race(Candidate(ASKED, None, times(factor)), Candidate(ONE, None, times(1.3)))
        found = raced.compare(raced.candidates[1])
        assert found is not None
        back = raced.compare(raced.winner, raced.candidates[1])
        assert back is not None
        assert back.ratio == pytest.approx(1 / found.ratio)
        assert back.low == pytest.approx(1 / found.high)
        assert found.is_noise is back.is_noise is (found.low <= 1 <= found.high)
        assert found.describe_ratio() in raced.describe()


def test_strategy_change_is_explained_by_measurements() -> None:
    raced = race(Candidate(ASKED, None, times(2.0)))
    assert compare_with_requested(raced, "mg-wfbp") is None
    compared = compare_with_requested(raced, "libra")
    assert compared is not None and not compared.is_noise
    why = explain_strategy_change("libra", "mg-wfbp", raced, ())
    assert why is not None
    assert compared.describe_ratio() in why
    assert explain_strategy_change("libra", "libra", raced, ()) is None
    note = "the model misses steps by 40%: MG-WFBP plans instead of libra"
    assert note in str(explain_strategy_change("libra", "mg-wfbp", None, ("other", note)))


def test_faster_plan_is_claimed_only_if_measured() -> None:
    """A plan may also stay because it was active."""
    equal = Candidate(ASKED, None, times(1.0))
    why = str(explain_strategy_change("libra", "mg-wfbp", race(equal), ()))
    assert "no plan was clearly faster" in why
