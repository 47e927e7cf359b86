"""Comparison of burst strategies, at every scale or under each limit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tf_libra.model_parallel.planning.burst.planner import make_burst_plan
from tf_libra.model_parallel.planning.burst.strategy import BurstStrategy
from tf_libra.planning.arguments import arguments_of
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.scaling_profile import ScalingProfile


@dataclass(frozen=True)
class BurstComparison:
    """One row of a comparison.

    Attributes:
      name: name of the strategy with its arguments.
      plan: the plan; None if the profile allows none.
      num_devices: fixed device count of every layer; None if the strategy chooses.
      problem: reason for a missing plan; empty with a plan.
    """

    name: str
    plan: BurstPlan | None
    num_devices: int | None = None
    problem: str = ""


def compare(
    scaling: ScalingProfile, strategies: Mapping[str, BurstStrategy], limits: Sequence[float]
) -> tuple[BurstComparison, ...]:
    """Return the comparison of the given strategies, by name.

    First come strategies with a fixed number of devices, for every number; then the others, under
    each limit on amplification and without one. A strategy without either argument runs once.

    Raises:
      ValueError: a limit that a strategy rejects, before any planning; or no strategy has a plan,
        with the first one's reason.
    """
    names = sorted(strategies, key=lambda name: not _takes(strategies[name], "num_devices"))
    asked = [one for name in names for one in _asked(scaling, name, strategies[name], limits)]
    rows = [_compared(scaling, *one) for one in asked]
    if rows and all(row.plan is None for row in rows):
        raise ValueError(rows[0].problem)
    return tuple(rows)


def _asked(
    scaling: ScalingProfile, name: str, strategy: BurstStrategy, limits: Sequence[float]
) -> Iterator[tuple[str, BurstStrategy, int | None]]:
    """Yield the rows: name, strategy, and a fixed number of devices or None."""
    if _takes(strategy, "num_devices"):
        for count in scaling.device_counts:
            yield f"{name}, {count}", strategy, count
    elif _takes(strategy, "max_amplification"):
        for limit in limits:
            yield f"{name}, {limit:g}", replace(strategy, max_amplification=limit), None
        yield f"{name}, no limit", strategy, None
    else:
        yield name, strategy, None


def _takes(strategy: BurstStrategy, name: str) -> bool:
    return any(one.name == name for one in arguments_of(type(strategy)))


def _compared(
    scaling: ScalingProfile, name: str, strategy: BurstStrategy, num_devices: int | None
) -> BurstComparison:
    try:
        plan = make_burst_plan(scaling, strategy, num_devices=num_devices)
        return BurstComparison(name, plan, num_devices)
    except ValueError as error:  # such as branches that the strategy does not support
        return BurstComparison(name, None, num_devices, str(error))
