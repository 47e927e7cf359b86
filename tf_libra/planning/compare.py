"""Comparison of the plans and predicted times of all strategies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tf_libra.cost_model import CostModel
from tf_libra.planning.data_parallel.api import make_plan
from tf_libra.planning.data_parallel.auto import Auto
from tf_libra.planning.data_parallel.mg_wfbp import MgWfbp
from tf_libra.planning.strategy import BY_NAME, Strategy, known_arguments
from tf_libra.simulation import Timeline, simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

# LIBRA's MG-CF: the groups of MG-WFBP without contention.
IDEAL = "mg-cf"


@dataclass(frozen=True)
class PlanComparison:
    """One row of a comparison.

    Attributes:
      name: name of the strategy or of the row.
      plan: the plan; None if the cost model allows none.
      timeline: predicted timeline of the plan; None without a plan.
      problem: reason for a missing plan; empty with a plan.
    """

    name: str
    plan: Plan | None
    timeline: Timeline | None
    problem: str = ""


def compare(
    profile: BackwardProfile,
    cost: CostModel,
    strategies: Mapping[str, Strategy],
    gathers: bool = False,
) -> tuple[PlanComparison, ...]:
    """Returns the comparison of the given strategies, by name, in their order.

    Args:
      profile: the gradients.
      cost: the cost model.
      strategies: strategies by name.
      gathers: as for `make_plan`.
    """
    return tuple(
        _compare_one(name, profile, cost, strategy, gathers)
        for name, strategy in strategies.items()
    )


def ideal(profile: BackwardProfile, cost: CostModel, num_threads: int) -> PlanComparison:
    """Returns MG-WFBP's plan without contention, close to a lower bound of all strategies.

    Raises:
      ValueError: a rate is not positive at this number of threads.
    """
    plan = make_plan(profile, cost, MgWfbp(num_threads=num_threads))
    return PlanComparison(IDEAL, plan, simulate(profile, plan, cost.contention_free()))


def compared_kinds() -> dict[str, type[Strategy]]:
    """Returns every registered strategy that plans by itself."""
    return {name: kind for name, kind in BY_NAME.items() if kind.tuned_by != Auto.tuned_by}


def every_strategy(arguments: Mapping[str, Any]) -> dict[str, Strategy]:
    """Returns all strategies, each with the given arguments that it has."""
    return {
        name: kind(**known_arguments(kind, arguments)) for name, kind in compared_kinds().items()
    }


def _compare_one(
    name: str, profile: BackwardProfile, cost: CostModel, strategy: Strategy, gathers: bool
) -> PlanComparison:
    try:
        plan = make_plan(profile, cost, strategy, gathers=gathers)
        return PlanComparison(name, plan, simulate(profile, plan, cost))
    except ValueError as error:  # a rate that is not positive at this number of threads
        return PlanComparison(name, None, None, str(error))
