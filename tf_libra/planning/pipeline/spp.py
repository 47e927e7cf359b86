"""Synchronous pipeline planning: SPP, Algorithm 3."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tf_libra import checks, units
from tf_libra.model.cluster import Cluster
from tf_libra.model.layers import LayerGraph
from tf_libra.model.pipeline import PipelinePlan, PipelineStage
from tf_libra.planning.pipeline.pe import execution_orders
from tf_libra.planning.pipeline.prm import Partitions, StageRange
from tf_libra.planning.pipeline.rdo import device_order
from tf_libra.planning.pipeline.strategy import (
    Microbatches,
    PipelineDraft,
    register,
)
from tf_libra.simulation.pipeline import simulate_pipeline


@register
@dataclass(frozen=True, kw_only=True)
class Spp(Microbatches):
    """SPP: for each number of stages the least bottleneck; of these plans the shortest iteration.

    Every device has a stage or a replica of one.

    Attributes:
      num_stages: exactly so many stages; None: as many as is best.
    """

    name: ClassVar[str] = "spp"
    num_stages: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "num_stages", checks.count("num_stages", self.num_stages))

    def draft(self, layers: LayerGraph, cluster: Cluster, num_microbatches: int) -> PipelineDraft:
        """Returns the plan of Algorithm 3; raises as `drafts`."""

        def seconds(draft: PipelineDraft) -> float:
            plan = PipelinePlan(draft.stages, layers.names, cluster.num_devices, self.name)
            return simulate_pipeline(layers, plan, cluster).iteration_seconds

        return min(self.drafts(layers, cluster, num_microbatches), key=seconds)

    def drafts(
        self, layers: LayerGraph, cluster: Cluster, num_microbatches: int
    ) -> tuple[PipelineDraft, ...]:
        """Returns what Algorithm 3 chooses from: for each number of stages the least bottleneck.

        Numbers of stages that links or memory forbid are left out.

        Raises:
          ValueError: links that the cluster lacks are needed whatever the plan (of many devices: by
            those in the order of Algorithm 2), or its devices have too little memory for any.
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
                    f" {units.size(cluster.memory_bytes)}, and links where they are needed"
                )
            raise ValueError(
                "bytes_per_second of cluster must link the devices that a plan of all "
                f"{cluster.num_devices}{wanted} needs; it has no link between "
                f"{_missing_links(cluster)}"
            )
        return tuple(PipelineDraft(in_execution_order(one, num_microbatches)) for one in found)


# Of so many devices every order is tried where Algorithm 2's has no plan for lack of links: 720.
_MAX_DEVICES_IN_ANY_ORDER = 6


def _partitions(
    layers: LayerGraph, cluster: Cluster, counts: Sequence[int], num_microbatches: int
) -> Partitions:
    """Partitions on the devices in the order of Algorithm 2, unless missing links leave it none.

    A plan may exist in another order all the same, and the least bottleneck of any is taken then.
    """

    def least(partitions: Partitions) -> float:
        return min(map(partitions.seconds, counts))

    found = Partitions(layers, cluster, device_order(cluster), num_microbatches)
    few = cluster.num_devices <= _MAX_DEVICES_IN_ANY_ORDER
    if least(found) < math.inf or not few or not _missing(cluster):
        return found
    orders = itertools.permutations(range(cluster.num_devices))
    return min((Partitions(layers, cluster, one, num_microbatches) for one in orders), key=least)


def in_execution_order(
    ranges: Sequence[StageRange], num_microbatches: int
) -> tuple[PipelineStage, ...]:
    """Returns the stages with the orders of Algorithm 1."""
    orders = execution_orders(len(ranges), num_microbatches)
    return tuple(
        PipelineStage(start, stop, devices, order)
        for (start, stop, devices), order in zip(ranges, orders, strict=True)
    )


def _missing(cluster: Cluster) -> list[tuple[int, int]]:
    """Pairs of devices without a link."""
    return [
        (a, b)
        for a, b in itertools.combinations(range(cluster.num_devices), 2)
        if cluster.bytes_per_second[a][b] == 0
    ]


def _missing_links(cluster: Cluster) -> str:
    pairs = [f"{a} and {b}" for a, b in _missing(cluster)]
    return ", ".join(pairs[:5]) + (f" and {len(pairs) - 5} other pairs" if pairs[5:] else "")
