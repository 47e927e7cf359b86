"""All strategies side by side: what each plans, and what that is predicted to take."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tf_libra.cost_model import CostModel
from tf_libra.model.plan import Plan
from tf_libra.model.profile import BackwardProfile
from tf_libra.planning.data_parallel.auto import Auto
from tf_libra.planning.data_parallel.mg_wfbp import MgWfbp
from tf_libra.planning.data_parallel.planner import make_plan
from tf_libra.planning.strategy import BY_NAME, Strategy, known_arguments
from tf_libra.simulation import Timeline, simulate

# LIBRA's MG-CF: the groups of MG-WFBP where all-reduces and computation do not contend.
IDEAL = "mg-cf"


@dataclass(frozen=True)
class Compared:
    """One row of a comparison.

    Attributes:
      name: the strategy's, or what the row is called instead.
      plan: its plan; None where the cost model allows none.
      timeline: what is predicted of it; likewise.
      problem: why there is none; empty where there is.
    """

    name: str
    plan: Plan | None
    timeline: Timeline | None
    problem: str = ""


def compare(
    profile: BackwardProfile, cost: CostModel, strategies: Mapping[str, Strategy]
) -> tuple[Compared, ...]:
    """Returns what each strategy plans, by the name it is given under, in that order."""
    return tuple(_compared(name, profile, cost, one) for name, one in strategies.items())


def ideal(profile: BackwardProfile, cost: CostModel, num_threads: int) -> Compared:
    """Returns what MG-WFBP's plan would take if nothing contended: no strategy is faster by much.

    Raises:
      ValueError: a rate is not positive at so many threads.
    """
    plan = make_plan(profile, cost, MgWfbp(num_threads=num_threads))
    return Compared(IDEAL, plan, simulate(profile, plan, cost.contention_free()))


def compared_kinds() -> dict[str, type[Strategy]]:
    """Every strategy that is registered, but for those that are the best of the others."""
    return {name: kind for name, kind in BY_NAME.items() if kind.tuned_by != Auto.tuned_by}


def every_strategy(given: Mapping[str, Any]) -> dict[str, Strategy]:
    """All of these, with those of the given arguments that they know."""
    return {name: kind(**known_arguments(kind, given)) for name, kind in compared_kinds().items()}


def _compared(name: str, profile: BackwardProfile, cost: CostModel, strategy: Strategy) -> Compared:
    try:
        plan = make_plan(profile, cost, strategy)
        return Compared(name, plan, simulate(profile, plan, cost))
    except ValueError as error:  # a rate that is not positive at so many threads
        return Compared(name, None, None, str(error))
