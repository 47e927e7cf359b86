"""Strategies side by side: each as it plans alone, and what none can plan is said."""

import pytest

import tf_libra
from tf_libra import strategies
from tf_libra.planning.compare import IDEAL, compare, every_strategy, ideal

PROFILE = tf_libra.BackwardProfile.from_arrays([400, 8_000_000, 2_000_000], [1e-3, 4e-3, 2e-3])
COST = tf_libra.ContentionModel(4, 5e-5, (1.0, 0.1), (1.5e9, 1e9, 0.7), (1.9e9, 1e9, 0.7))


def test_row_holds_the_strategy_s_plan():
    rows = compare(
        PROFILE, COST, {"mine": strategies.Libra(threads=(1, 2)), "b": strategies.Wfbp()}
    )
    assert [row.name for row in rows] == ["mine", "b"]
    for row, strategy in zip(
        rows, (strategies.Libra(threads=(1, 2)), strategies.Wfbp()), strict=True
    ):
        assert row.plan == tf_libra.make_plan(PROFILE, COST, strategy)
        assert row.timeline == tf_libra.simulate(PROFILE, row.plan, COST)
        assert row.problem == ""


def test_strategy_without_plan_has_a_row():
    rows = compare(
        PROFILE,
        COST,
        {"fits": strategies.Wfbp(num_threads=2), "does not": strategies.Wfbp(num_threads=10)},
    )
    assert rows[0].plan is not None
    assert rows[1].plan is rows[1].timeline is None
    assert "r = 10" in rows[1].problem


def test_ideal_is_no_slower_than_with_contention():
    free = ideal(PROFILE, COST, 2)
    assert free.name == IDEAL
    with_contention = tf_libra.simulate(PROFILE, free.plan, COST)
    assert free.timeline.backward_seconds <= with_contention.backward_seconds
    with pytest.raises(ValueError, match="r = 10"):
        ideal(PROFILE, COST, 10)


def test_strategies_receive_their_own_arguments():
    found = every_strategy({"threads": (1, 2), "num_threads": 2, "max_groups": 3})
    assert set(found) == set(strategies.BY_NAME) - {"auto"}
    assert found["libra"].threads == (1, 2)
    assert found["libra"].max_groups == 3
    assert found["wfbp"].num_threads == 2
