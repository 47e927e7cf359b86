"""The rank that trains the joint batch, and plans of one rank."""

import pytest

from tf_libra.model_parallel.planning.one_rank import OneRank, fastest_rank_plan
from tf_libra.specs.one_rank import OneRankPlan


def test_rank_0_computes_unless_another_is_clearly_faster() -> None:
    assert fastest_rank_plan([1.04, 1.0, 1.02]).rank == 0
    assert fastest_rank_plan([1.06, 1.02, 1.0]) == OneRankPlan(2, 3, (1.06, 1.02, 1.0))
    assert fastest_rank_plan([1.06, float("inf"), 1.0]) == OneRankPlan(2, 3)


@pytest.mark.parametrize(("rank", "seconds"), [(2, ()), (-1, ()), (0, (1.0,)), (0, (1.0, 0.0))])
def test_plan_must_be_of_the_job(rank: int, seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"^(rank|seconds)"):
        OneRankPlan(rank, 2, seconds)


def test_rank_must_be_a_number() -> None:
    with pytest.raises(ValueError, match=r"^rank"):
        OneRank(rank=-1)
