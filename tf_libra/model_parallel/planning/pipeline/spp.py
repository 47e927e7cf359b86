"""Synchronous pipeline planning: SPP, Algorithm 3."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tf_libra.internal import formatting
from tf_libra.internal.values import Int32Count
from tf_libra.model_parallel.planning.pipeline.device_ordering import device_order
from tf_libra.model_parallel.planning.pipeline.partitioning import Partitions, StageRange
from tf_libra.model_parallel.planning.pipeline.strategy import (
    PipelineDraft,
    PipelineStrategyBase,
    register,
)
from tf_libra.model_parallel.simulation.fastest_pipeline import fastest_first
from tf_libra.planning.arguments import argument
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import Computation, PipelinePlan, PipelineStage


@register
@dataclass(frozen=True, kw_only=True)
class Spp(PipelineStrategyBase):
    """SPP: the least bottleneck for each number of stages, then the shortest iteration.

    Every device has a stage or a replica of a stage.
    """

    name: ClassVar[str] = "spp"
    num_stages: Int32Count | None = argument(None, "fixed number of stages; None: the best number.")

    def draft(self, layers: LayerGraph, cluster: Cluster, num_microbatches: int) -> PipelineDraft:
        """Return the plan of Algorithm 3; raises as `drafts`."""
        drafts = self.drafts(layers, cluster, num_microbatches)
        plans = [
            PipelinePlan(draft.stages, layers.names, cluster.num_devices, self.name)
            for draft in drafts
        ]
        return PipelineDraft(next(fastest_first(plans, layers, cluster)).stages)

    def drafts(
        self, layers: LayerGraph, cluster: Cluster, num_microbatches: int
    ) -> tuple[PipelineDraft, ...]:
        """Return the candidates of Algorithm 3: the least bottleneck for each number of stages.

        Numbers of stages that links or memory forbid have no candidate.

        Raises:
          ValueError: every plan needs a missing link or more memory than its devices have. For many
            devices, only plans in the order of Algorithm 2 are considered.
        """
        counts: Sequence[int] = range(1, min(len(layers.layers), cluster.num_devices) + 1)
        if self.num_stages is not None:
            counts = [self.num_stages]
        partitions = _partitions(layers, cluster, counts, num_microbatches)
        found = [ranges for ranges in map(partitions.stages, counts) if ranges is not None]
        if not found:
            wanted = "" if self.num_stages is None else f" in {self.num_stages} stages"
            if cluster.memory_bytes is not None:
                raise ValueError(
                    f"no plan of all {cluster.num_devices} devices{wanted} has stages whose"
                    f" parameters and gradients fit into memory_bytes of cluster,"
                    f" {formatting.size(cluster.memory_bytes)}, and links where they are needed"
                )
            raise ValueError(
                "bytes_per_second of cluster must link the devices that a plan of all "
                f"{cluster.num_devices}{wanted} needs; it has no link between "
                f"{_missing_links(cluster)}"
            )
        return tuple(
            PipelineDraft(in_execution_order(stages, num_microbatches)) for stages in found
        )


# Most devices for which all orders (720) are tried if Algorithm 2's order lacks a link.
_MAX_DEVICES_IN_ANY_ORDER = 6


def _partitions(
    layers: LayerGraph, cluster: Cluster, counts: Sequence[int], num_microbatches: int
) -> Partitions:
    """Return partitions in the order of Algorithm 2, or in the best order if links are missing.

    If Algorithm 2's order has no plan, the least bottleneck over all orders wins.
    """

    def least(partitions: Partitions) -> float:
        return min(map(partitions.seconds, counts))

    found = Partitions(layers, cluster, device_order(cluster), num_microbatches)
    few = cluster.num_devices <= _MAX_DEVICES_IN_ANY_ORDER
    if least(found) < math.inf or not few or not _missing(cluster):
        return found
    orders = itertools.permutations(range(cluster.num_devices))
    return min(
        (Partitions(layers, cluster, order, num_microbatches) for order in orders), key=least
    )


def in_execution_order(
    ranges: Sequence[StageRange], num_microbatches: int
) -> tuple[PipelineStage, ...]:
    """Return the stages with the orders of Algorithm 1."""
    orders = execution_orders(len(ranges), num_microbatches)
    return tuple(
        PipelineStage(start, stop, devices, order)
        for (start, stop, devices), order in zip(ranges, orders, strict=True)
    )


def _missing(cluster: Cluster) -> list[tuple[int, int]]:
    """Return pairs of devices without a link."""
    return [
        (a, b)
        for a, b in itertools.combinations(range(cluster.num_devices), 2)
        if cluster.bytes_per_second[a][b] == 0
    ]


def _missing_links(cluster: Cluster) -> str:
    pairs = [f"{a} and {b}" for a, b in _missing(cluster)]
    return ", ".join(pairs[:5]) + (f" and {len(pairs) - 5} other pairs" if pairs[5:] else "")


def execution_orders(num_stages: int, num_microbatches: int) -> list[tuple[Computation, ...]]:
    """Return U_s, the order of each stage's computation blocks.

    A microbatch passes 4S - 3 blocks: computation and transfers forward, the last stage's forward
    and backward as one, transfers and computation backward. A pass over the blocks moves at most
    one microbatch through each, and sees the queues as they were when it began (Fig. 4). All
    microbatches start before the first block, so pass t takes microbatch t - j through block j. A
    stage's order is therefore that of m + j, and in one pass forward precedes backward.
    """
    last = 4 * num_stages - 4
    orders = []
    for stage in range(num_stages):
        sort_keys: dict[Computation, tuple[int, int]] = {}
        for microbatch in range(num_microbatches):
            sort_keys["forward", microbatch] = microbatch + 2 * stage, 0
            sort_keys["backward", microbatch] = microbatch + last - 2 * stage, 1
        orders.append(tuple(sorted(sort_keys, key=sort_keys.__getitem__)))
    return orders
