"""From a strategy's name to a burst plan."""

from tf_libra import checks
from tf_libra.model.burst import BurstPlan
from tf_libra.model.scaling import ScalingProfile
from tf_libra.planning.burst import deeppool, same_devices, search_linear  # noqa: F401  # register
from tf_libra.planning.burst.registry import PLANNERS, Request
from tf_libra.planning.burst.schedule import make_schedule


def make_burst_plan(
    scaling: ScalingProfile,
    strategy: str = "deeppool",
    *,
    max_amplification: float | None = None,
    num_devices: int | None = None,
) -> BurstPlan:
    """Returns the strategy's plan for a scaling profile.

    Args:
      scaling: the layers at every number of devices.
      strategy: "deeppool" (the least iteration time within the limit), "data-parallel" (every layer
        on the same devices) or "search-linear" (DeepPool's Algorithm 1 as printed).
      max_amplification: what no layer's amplification may exceed, at least 1; None: no limit.
      num_devices: of "data-parallel"; None: the quickest number.

    Raises:
      ValueError: an unknown strategy, a limit below 1 or not finite, a number of devices that is
        not among the profile's or that the strategy does not take, or branches that form no blocks.
    """
    if not isinstance(scaling, ScalingProfile):
        raise ValueError(f"scaling must be a ScalingProfile, got {scaling!r:.80}")
    if not isinstance(strategy, str) or strategy not in PLANNERS:
        raise ValueError(f"strategy must be one of {', '.join(PLANNERS)}, got {strategy!r}")
    if max_amplification is not None:
        max_amplification = checks.real("max_amplification", max_amplification, minimum=1)
    if num_devices is not None:
        num_devices = scaling.device_counts[scaling.index(num_devices)]
    run, notes = PLANNERS[strategy](scaling, Request(max_amplification, num_devices))
    return make_schedule(scaling, run, strategy, max_amplification, notes)
