"""Planning of bursts by a strategy."""

from dataclasses import replace

from tf_libra.internal import validation
from tf_libra.model_parallel.planning.burst.schedule import make_schedule
from tf_libra.model_parallel.planning.burst.strategy import BurstStrategy, resolve
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
