"""Protocol and registry of strategies for pipelines."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tf_libra.internal.registry import ClassRegistry
from tf_libra.internal.values import Int32Count, Positive, Value
from tf_libra.model_parallel.planning.results import RESULTS_DOC, Results
from tf_libra.planning.arguments import argument
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelineStage

# Microbatches for each rank, if the strategy leaves their number open, and nothing is predicted.
_MICROBATCHES_PER_RANK = 2
# Microbatches that `auto` compares on a few ranks; planning more takes long.
_MOST_COMPARED = 16


@dataclass(frozen=True)
class PipelineDraft:
    """Result of a planner: stages before simulation.

    Attributes:
      stages: contiguous ranges that cover all layers, with devices and orders.
      notes: sentences for the plan's notes.
    """

    stages: tuple[PipelineStage, ...]
    notes: tuple[str, ...] = ()


class PipelineStrategy(Protocol):
    """Planner with its arguments, a frozen dataclass.

    Attributes:
      name: name for users, plans and tables.
    """

    name: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def num_microbatches(self) -> int | None:
        """M; None if the caller chooses."""
        ...

    @property
    def num_stages(self) -> int | None:
        """Fixed number of stages; None: the strategy chooses. 1 needs no partition."""
        ...

    @property
    def memory_bytes(self) -> float | None:
        """This rank's memory for parameters and their gradients; None: unlimited."""
        ...

    @property
    def release_variables(self) -> bool:
        """True if training frees the variables that only other ranks update."""
        ...

    def draft(self, layers: LayerGraph, cluster: Cluster, num_microbatches: int) -> PipelineDraft:
        """Plan stages and orders; a cluster that allows no plan is a `ValueError`.

        `make_pipeline_plan` adds the prediction.
        """
        ...

    def drafts(
        self, layers: LayerGraph, cluster: Cluster, num_microbatches: int
    ) -> tuple[PipelineDraft, ...]:
        """Return all candidates of `draft`, at least one, or raise `ValueError`."""
        ...


@dataclass(frozen=True, kw_only=True)
class PipelineStrategyBase(Value):
    """Defaults of most strategies: arguments that pipelines share, and a single draft."""

    num_microbatches: Int32Count | None = argument(
        None,
        "M, number of microbatches; None: an argument of the call, and in training two per rank, or"
        " the largest smaller number that divides the joint batch.",
    )
    memory_bytes: Positive | None = argument(
        None,
        "memory of this rank for the parameters of its stage and their gradients; the smallest of"
        " all ranks counts. None: unlimited.",
        in_training=True,
        is_rank_local=True,
    )
    release_variables: bool = argument(
        False,
        "in training, free variables that only the stages of other ranks use, until"
        " `synchronize_variables()`.",
        in_training=True,
    )
    results: Results = argument("joint", RESULTS_DOC, in_training=True)

    @property
    def num_stages(self) -> int | None:
        """Fixed number of stages: none, the strategy chooses."""
        return None

    def drafts(
        self: PipelineStrategy, layers: LayerGraph, cluster: Cluster, num_microbatches: int
    ) -> tuple[PipelineDraft, ...]:
        """Return the single draft."""
        return (self.draft(layers, cluster, num_microbatches),)


REGISTRY: ClassRegistry[PipelineStrategy] = ClassRegistry(
    "a pipeline strategy of tf_libra.strategies",
    protocol=PipelineStrategy,
    bases=(PipelineStrategyBase,),
)
BY_NAME = REGISTRY.by_name
register = REGISTRY.register
resolve = REGISTRY.resolve


def possible_microbatches(num_ranks: int, batch: int) -> int:
    """Return the number of microbatches if the strategy leaves it open; it divides the batch.

    Args:
        num_ranks: number of ranks of the job.
        batch: number of examples of the joint batch.
    """
    return _largest_divisor(batch, _MICROBATCHES_PER_RANK * num_ranks)


def candidate_microbatches(num_ranks: int, batch: int) -> tuple[int, ...]:
    """Return the numbers of microbatches to compare, ascending; each divides the batch.

    Args:
        num_ranks: number of ranks of the job.
        batch: number of examples of the joint batch.
    """
    limits, limit = [1], num_ranks
    while limit <= most_microbatches(num_ranks):
        limits.append(limit)
        limit *= 2
    return tuple(sorted({_largest_divisor(batch, limit) for limit in limits}))


def most_microbatches(num_ranks: int) -> int:
    """Return the largest number of microbatches that `auto` compares."""
    return max(_MICROBATCHES_PER_RANK * num_ranks, _MOST_COMPARED)


def _largest_divisor(number: int, limit: int) -> int:
    return next(count for count in range(limit, 0, -1) if not number % count)
