"""What plans pipelines: the protocol of a strategy, and who is known by which name."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tf_libra import checks
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

    @property
    def num_stages(self) -> int | None:
        """How many stages its plans have, where that is said; 1 needs nothing that can be cut."""
        ...

    def draft(self, layers: LayerGraph, cluster: Cluster, num_microbatches: int) -> PipelineDraft:
        """Which layers run where, in which order; `ValueError` where the cluster does not allow it.

        The prediction is added elsewhere.
        """
        ...

    def drafts(
        self, layers: LayerGraph, cluster: Cluster, num_microbatches: int
    ) -> tuple[PipelineDraft, ...]:
        """All that `draft` chooses from; at least one, else `ValueError`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Microbatches:
    """What strategies have in common: microbatches, and one draft unless they say more.

    Attributes:
      num_microbatches: M; None: said when a plan is made.
    """

    num_microbatches: int | None = None

    def __post_init__(self) -> None:
        microbatches = checks.count("num_microbatches", self.num_microbatches)
        object.__setattr__(self, "num_microbatches", microbatches)

    @property
    def num_stages(self) -> int | None:
        """As many as are planned."""
        return None

    def drafts(
        self: PipelineStrategy, layers: LayerGraph, cluster: Cluster, num_microbatches: int
    ) -> tuple[PipelineDraft, ...]:
        """The one."""
        return (self.draft(layers, cluster, num_microbatches),)


REGISTRY: Registry[PipelineStrategy] = Registry(
    "a pipeline strategy of tf_libra.strategies", protocol=PipelineStrategy, usual=(Microbatches,)
)
BY_NAME = REGISTRY.by_name
register = REGISTRY.register
find = REGISTRY.find
resolve = REGISTRY.resolve
