"""The fastest of several pipeline plans, few of which are simulated."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tf_libra.model_parallel.simulation.pipeline import least_iteration_seconds, simulate_pipeline
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan

# Keeps a lower bound below what the simulation adds up in another order.
_ROUNDING = 1e-9


def fastest_first(
    plans: Sequence[PipelinePlan], layers: LayerGraph, cluster: Cluster
) -> Iterator[PipelinePlan]:
    """Yield plans with the predicted time of an iteration, the shortest first, ties in their order.

    A plan is simulated once no other one may be faster than its lower bound. With many devices,
    the simulation of all plans would take longer than training may wait.
    """
    queue = [
        (least_iteration_seconds(layers, plan, cluster) * (1 - _ROUNDING), False, index)
        for index, plan in enumerate(plans)
    ]
    heapq.heapify(queue)
    while queue:
        seconds, is_simulated, index = heapq.heappop(queue)
        if is_simulated:
            yield replace(plans[index], predicted_seconds=seconds)
        else:
            seconds = simulate_pipeline(layers, plans[index], cluster).iteration_seconds
            heapq.heappush(queue, (seconds, True, index))
