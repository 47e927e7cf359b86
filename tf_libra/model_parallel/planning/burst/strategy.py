"""Protocol and registry of strategies for burst plans."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tf_libra.internal.registry import ClassRegistry
from tf_libra.internal.values import AtLeastOne, Value
from tf_libra.model_parallel.planning.results import RESULTS_DOC, Results
from tf_libra.planning.arguments import argument
from tf_libra.specs.scaling_profile import ScalingProfile


@dataclass(frozen=True)
class EdgeRun:
    """Single edge; an edge with index -1 carries no layer's output."""

    index: int


@dataclass(frozen=True)
class ChainRun:
    """Layers one after the other, as in `graph_reduction.Chain`.

    Attributes:
      layers: at least one.
      counts: positions of their device counts in `device_counts`.
      links: one more than layers; the first and the last connect to the outside, None for the
        whole model.
    """

    layers: tuple[int, ...]
    counts: tuple[int, ...]
    links: tuple["Run | None", ...]


@dataclass(frozen=True)
class BlockRun:
    """Branches between the same two layers.

    Attributes:
      main: branches that run one after the other on the devices around the block.
      parallel: branches that run in parallel, each on its own devices.
      allotments: device counts of `main` and of each parallel branch.
    """

    main: tuple["EdgeRun | ChainRun", ...]
    parallel: tuple[ChainRun, ...]
    allotments: tuple[int, ...]


Run = EdgeRun | ChainRun | BlockRun


@dataclass(frozen=True)
class BurstDraft:
    """Result of a planner: a decision before scheduling.

    Attributes:
      run: device counts per layer and parallel branches.
      notes: sentences for the plan's notes.
    """

    run: ChainRun
    notes: tuple[str, ...] = ()


class BurstStrategy(Protocol):
    """Planner with its arguments, a frozen dataclass.

    Attributes:
      name: name for users, plans and tables.
    """

    name: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def max_amplification(self) -> float | None:
        """Largest amplification of a layer; None: no limit."""
        ...

    @property
    def device_counts(self) -> tuple[int, ...] | None:
        """Allowed device counts, ascending, from 1; None: any."""
        ...

    @property
    def num_devices(self) -> int | None:
        """Fixed device count of every layer; None: the strategy chooses."""
        ...

    def draft(self, scaling: ScalingProfile) -> BurstDraft:
        """Plan the device counts of layers; an unsupported model is a `ValueError`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Limited(Value):
    """Defaults of strategies with a limit on amplification."""

    max_amplification: AtLeastOne | None = argument(
        None,
        "largest amplification of a layer, at least 1; None: no limit.",
    )
    results: Results = argument("joint", RESULTS_DOC, in_training=True)

    @property
    def device_counts(self) -> tuple[int, ...] | None:
        """Allowed device counts: any."""
        return None

    @property
    def num_devices(self) -> int | None:
        """Fixed device count: none, the strategy chooses."""
        return None


REGISTRY: ClassRegistry[BurstStrategy] = ClassRegistry(
    "a burst strategy of tf_libra.strategies", protocol=BurstStrategy, bases=(Limited,)
)
BY_NAME = REGISTRY.by_name
register = REGISTRY.register
resolve = REGISTRY.resolve


def possible_counts(strategy: BurstStrategy, num_ranks: int, batch: int) -> tuple[int, ...]:
    """Return the numbers of ranks that layers may have under a strategy.

    Args:
        strategy: planner with its arguments.
        num_ranks: number of ranks of the job.
        batch: number of examples of the joint batch.
    """
    if strategy.device_counts is not None:
        return strategy.device_counts
    if strategy.num_devices is not None:  # plus 1 rank, the reference for amplification
        return tuple(sorted({1, strategy.num_devices}))
    powers = (2**k for k in range(num_ranks.bit_length()))
    return (*(power for power in powers if power < num_ranks and not batch % power), num_ranks)


_MOST_COUNTS = 4


def measured_counts(counts: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of ranks that steps measure, so that they do not grow with the job.

    They are the first, the last and others at even distances, at most four. Computation under the
    others follows by `measured_scaling.at_counts`.

    Args:
        counts: numbers of ranks that layers may have.
    """
    if len(counts) <= _MOST_COUNTS:
        return tuple(counts)
    last = len(counts) - 1
    return tuple(counts[round(i * last / (_MOST_COUNTS - 1))] for i in range(_MOST_COUNTS))
