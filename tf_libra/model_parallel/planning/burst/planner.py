"""Planning of bursts by a strategy."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tf_libra.internal import validation
from tf_libra.model_parallel.planning.burst.schedule import make_schedule
from tf_libra.model_parallel.planning.burst.strategy import BurstStrategy, resolve
from tf_libra.planning.arguments import arguments_of
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.scaling_profile import ScalingProfile


def make_burst_plan(
    scaling: ScalingProfile,
    strategy: BurstStrategy | str = "deeppool",
    *,
    max_amplification: float | None = None,
    num_devices: int | None = None,
) -> BurstPlan:
    """Return the strategy's plan for a scaling profile.

    Args:
      scaling: the layers at every number of devices.
      strategy: a registered name, such as "deeppool" (the least iteration time within the limit),
        "data-parallel" (every layer on the same devices) or "search-linear" (DeepPool's Algorithm 1
        as printed); or a strategy with its arguments.
      max_amplification: largest amplification of a layer, at least 1; None: the strategy's, by
        default no limit.
      num_devices: device count of "data-parallel"; None: the strategy's, by default the fastest.

    Raises:
      ValueError: an unknown strategy, a limit below 1 or not finite, a device count outside of the
        profile or not supported by the strategy, or branches that form no blocks.
    """
    validation.instance("scaling", scaling, ScalingProfile)
    strategy = resolve(strategy)
    if max_amplification is not None:
        strategy = replace(strategy, max_amplification=max_amplification)
    if num_devices is not None:
        num_devices = scaling.device_counts[scaling.index(num_devices)]
        if "num_devices" not in strategy.__dataclass_fields__:
            raise ValueError(
                f"num_devices is no argument of {strategy.name}, which chooses it,"
                f" got {num_devices}"
            )
        strategy = replace(strategy, num_devices=num_devices)
    draft = strategy.draft(scaling)
    return make_schedule(scaling, draft.run, strategy.name, strategy.max_amplification, draft.notes)


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
    requested = [
        request for name in names for request in _requests(scaling, name, strategies[name], limits)
    ]
    rows = [_compared(scaling, *request) for request in requested]
    if rows and all(row.plan is None for row in rows):
        raise ValueError(rows[0].problem)
    return tuple(rows)


def _requests(
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
    return any(argument.name == name for argument in arguments_of(type(strategy)))


def _compared(
    scaling: ScalingProfile, name: str, strategy: BurstStrategy, num_devices: int | None
) -> BurstComparison:
    try:
        plan = make_burst_plan(scaling, strategy, num_devices=num_devices)
        return BurstComparison(name, plan, num_devices)
    except ValueError as error:  # such as branches that the strategy does not support
        return BurstComparison(name, None, num_devices, str(error))
