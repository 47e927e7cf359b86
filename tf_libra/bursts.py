"""Planning and simulation of bursts; `tf_libra.strategies` has the planner."""

from typing import TYPE_CHECKING

from tf_libra.internal.lazy_names import lazy_getattr

if TYPE_CHECKING:
    from tf_libra.model_parallel.planning.burst import make_burst_plan
    from tf_libra.model_parallel.simulation import simulate_burst
    from tf_libra.specs.burst import BurstPlan
    from tf_libra.specs.scaling_profile import ScalingProfile

__all__ = ["BurstPlan", "ScalingProfile", "make_burst_plan", "simulate_burst"]

__getattr__ = lazy_getattr(
    __name__,
    {
        "BurstPlan": "tf_libra.specs.burst",
        "ScalingProfile": "tf_libra.specs.scaling_profile",
        "make_burst_plan": "tf_libra.model_parallel.planning.burst",
        "simulate_burst": "tf_libra.model_parallel.simulation",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
