"""Comparisons of plans by interleaved trials."""

from dataclasses import replace

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


def race(*others: Candidate) -> Race:
    return Race((Candidate(TWO, None, (1.0, 1.1, 1.0, 1.1)), *others))


def test_one_all_reduce_is_compared_round_by_round() -> None:
    slower = Candidate(ONE, None, (1.25, 1.375, 1.25, 1.375))
    found = compare_with_one_all_reduce(race(slower))
    assert found is not None
    assert not found.is_noise
    assert (found.low, found.ratio, found.high) == (0.8, 0.8, 0.8)
    assert found.num_rounds == 4
    assert "-20.0 % against one all-reduce after backward" in found.describe()


def test_noise_is_described_as_no_difference() -> None:
    found = compare_with_one_all_reduce(race(Candidate(ONE, None, (1.1, 1.0, 1.1, 1.0))))
    assert found is not None
    assert found.describe().startswith(formatting.NO_DIFFERENCE)


def test_plans_without_common_rounds_are_not_compared() -> None:
    assert compare_with_one_all_reduce(None) is None
    assert compare_with_one_all_reduce(race()) is None
    assert compare_with_one_all_reduce(race(Candidate(ASKED, None, (1.0,) * 4))) is None
    assert compare_with_one_all_reduce(race(Candidate(ONE, None, (1.0,)))) is None
    assert compare_with_one_all_reduce(Race((Candidate(ONE, None, (1.0,) * 4),))) is None


def test_strategy_change_is_explained_by_measurements() -> None:
    raced = race(Candidate(ASKED, None, (2.0,) * 4))
    assert compare_with_requested(raced, "mg-wfbp") is None
    why = explain_strategy_change("libra", "mg-wfbp", raced, ())
    assert why is not None
    assert "took 1.05 s, that of libra in 2 groups 2 s." in why
    assert explain_strategy_change("libra", "libra", raced, ()) is None
    note = "the model misses steps by 40%: MG-WFBP plans instead of libra"
    assert note in str(explain_strategy_change("libra", "mg-wfbp", None, ("other", note)))


def test_shortest_step_is_claimed_only_if_measured() -> None:
    """A plan may also win by its prediction, or since it was active."""
    slower, quicker = Candidate(ONE, None, (1.2,) * 4), Candidate(ONE, None, (1.0, 1.1, 1.0, 1.0))
    assert "shortest" in str(explain_strategy_change("libra", "mg-wfbp", race(slower), ()))
    why = str(explain_strategy_change("libra", "mg-wfbp", race(quicker), ()))
    assert "shortest" not in why
    assert "no plan was clearly faster" in why
