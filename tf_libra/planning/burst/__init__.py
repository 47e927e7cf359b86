from tf_libra.planning.burst.baselines import (
    Partition,
    data_parallel,
    static_partitions,
    strong_scaling_limit,
)
from tf_libra.planning.burst.planner import make_burst_plan

__all__ = [
    "Partition",
    "data_parallel",
    "make_burst_plan",
    "static_partitions",
    "strong_scaling_limit",
]
