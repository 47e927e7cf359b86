"""What plans pipelines: the protocol of a strategy, and who is known by which name."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from tf_libra.model.cluster import Cluster
from tf_libra.model.layers import LayerGraph
from tf_libra.model.pipeline import PipelineStage
from tf_libra.registry import Registry


@dataclass(frozen=True)
class PipelineDraft:
    """What a planner hands back: stages that nobody has simulated yet.

    Attributes:
      stages: contiguous ranges that cover all layers, with devices and orders.
      notes: sentences for the plan's notes.
    """

    stages: tuple[PipelineStage, ...]
    notes: tuple[str, ...] = ()


class PipelineStrategy(Protocol):
    """A frozen dataclass that holds the arguments of a planner, and plans by them.

    Attributes:
      name: what users, plans and tables call it.
    """

    name: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def num_microbatches(self) -> int | None:
        """M, where the strategy itself says it."""
        ...

    def draft(self, layers: LayerGraph, cluster: Cluster, num_microbatches: int) -> PipelineDraft:
        """Which layers run where, in which order; `ValueError` where the cluster does not allow it.

        The prediction is added elsewhere.
        """
        ...


@runtime_checkable
class Choosing(Protocol):
    """What a strategy has besides if it chooses its plan among several."""

    def drafts(
        self, layers: LayerGraph, cluster: Cluster, num_microbatches: int
    ) -> tuple[PipelineDraft, ...]:
        """All that `draft` chooses from; at least one, else `ValueError`."""
        ...


REGISTRY: Registry[PipelineStrategy] = Registry("a pipeline strategy of tf_libra.strategies")
BY_NAME = REGISTRY.by_name
register = REGISTRY.register
find = REGISTRY.find
resolve = REGISTRY.resolve


def check_stages(num_stages: int, layers: LayerGraph, cluster: Cluster) -> int:
    """Returns a number of stages, at least 1, that layers and devices allow, else `ValueError`."""
    limits = {"layers": len(layers.layers), "devices": cluster.num_devices}
    for what, limit in limits.items():
        if num_stages > limit:
            raise ValueError(
                f"num_stages must be at most the number of {what}, {limit}, got {num_stages}"
            )
    return num_stages
