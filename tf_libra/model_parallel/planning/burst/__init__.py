"""Planners of burst plans, which choose the number of devices of each layer.

Importing the package registers its planners in the order of the imports below.
"""

# isort: off
from tf_libra.model_parallel.planning.burst.deeppool import DeepPool
from tf_libra.model_parallel.planning.burst.data_parallel_strategy import DataParallel
from tf_libra.model_parallel.planning.burst.greedy_linear import SearchLinear

# isort: on
from tf_libra.model_parallel.planning.burst.baselines import (
    Partition,
    data_parallel,
    static_partitions,
    strong_scaling_limit,
    with_device_counts,
)
from tf_libra.model_parallel.planning.burst.planner import make_burst_plan
from tf_libra.model_parallel.planning.burst.schedule import reschedule
from tf_libra.model_parallel.planning.burst.strategy import (
    BY_NAME,
    REGISTRY,
    BurstDraft,
    BurstStrategy,
    Limited,
    measured_counts,
    possible_counts,
    register,
    resolve,
)

__all__ = [
    "BY_NAME",
    "REGISTRY",
    "BurstDraft",
    "BurstStrategy",
    "DataParallel",
    "DeepPool",
    "Limited",
    "Partition",
    "SearchLinear",
    "data_parallel",
    "make_burst_plan",
    "measured_counts",
    "possible_counts",
    "register",
    "reschedule",
    "resolve",
    "static_partitions",
    "strong_scaling_limit",
    "with_device_counts",
]
