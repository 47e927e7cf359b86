"""All strategies of bursts side by side: what each plans, at every scale or under each limit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tf_libra.model.burst import BurstPlan
from tf_libra.model.scaling import ScalingProfile
from tf_libra.planning.arguments import arguments_of
from tf_libra.planning.burst.planner import make_burst_plan
from tf_libra.planning.burst.strategy import BurstStrategy


@dataclass(frozen=True)
class Compared:
    """One row of a comparison.

    Attributes:
      name: the strategy's, and what it was given.
      plan: its plan; None where the profile allows none.
      num_devices: of every layer, where that was given.
      problem: why there is no plan; empty where there is.
    """

    name: str
    plan: BurstPlan | None
    num_devices: int | None = None
    problem: str = ""


def compare(
    scaling: ScalingProfile, strategies: Mapping[str, BurstStrategy], limits: Sequence[float]
) -> tuple[Compared, ...]:
    """Returns what each strategy plans, by the name it is given under.

    First those whose number of devices may be given, on every number; then the others, under each
    limit on amplification and under none; as it is a strategy that takes neither.

    Raises:
      ValueError: none has a plan; says why the first has none.
    """
    names = sorted(strategies, key=lambda name: not _takes(strategies[name], "num_devices"))
    rows = [row for name in names for row in _rows(scaling, name, strategies[name], limits)]
    if rows and all(row.plan is None for row in rows):
        raise ValueError(rows[0].problem)
    return tuple(rows)


def _rows(
    scaling: ScalingProfile, name: str, strategy: BurstStrategy, limits: Sequence[float]
) -> Iterator[Compared]:
    if _takes(strategy, "num_devices"):
        for count in scaling.device_counts:
            yield _compared(scaling, f"{name}, {count}", strategy, num_devices=count)
    elif _takes(strategy, "max_amplification"):
        for limit in limits:
            yield _compared(scaling, f"{name}, {limit:g}", strategy, max_amplification=limit)
        yield _compared(scaling, f"{name}, no limit", strategy)
    else:
        yield _compared(scaling, name, strategy)


def _takes(strategy: BurstStrategy, name: str) -> bool:
    return any(one.name == name for one in arguments_of(type(strategy)))


def _compared(
    scaling: ScalingProfile,
    name: str,
    strategy: BurstStrategy,
    max_amplification: float | None = None,
    num_devices: int | None = None,
) -> Compared:
    try:
        plan = make_burst_plan(
            scaling, strategy, max_amplification=max_amplification, num_devices=num_devices
        )
        return Compared(name, plan, num_devices)
    except ValueError as error:  # such as branches, which it does not take
        return Compared(name, None, num_devices, str(error))
