"""The pipeline planners that are known by name: each module registers its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from tf_libra import checks
from tf_libra.model.cluster import Cluster
from tf_libra.model.layers import LayerGraph
from tf_libra.model.pipeline import PipelineStage


@dataclass(frozen=True)
class PipelineDraft:
    """What a planner hands back: stages that nobody has simulated yet.

    Attributes:
      stages: contiguous ranges that cover all layers, with devices and orders.
      notes: sentences for the plan's notes.
    """

    stages: tuple[PipelineStage, ...]
    notes: tuple[str, ...] = ()


@runtime_checkable
class PipelineStrategy(Protocol):
    """A planner with its arguments. Its name is how users ask for it."""

    name: ClassVar[str]

    @property
    def num_microbatches(self) -> int | None:
        """M where the strategy itself says it."""

    def plan(self, layers: LayerGraph, cluster: Cluster, num_microbatches: int) -> PipelineDraft:
        """Returns stages; `ValueError` where the cluster allows none."""


Kind = TypeVar("Kind", bound=type[PipelineStrategy])

_KINDS: dict[str, type[PipelineStrategy]] = {}


def register(kind: Kind) -> Kind:
    """Makes a class of strategies known by its `name`; a decorator.

    Raises:
      ValueError: another class has this name.
    """
    name = checks.text("name", kind.name)
    other = _KINDS.setdefault(name, kind)
    if other is not kind:
        raise ValueError(f"name must be of no other strategy, got {name!r}, which {other} has")
    return kind


def names() -> Sequence[str]:
    """The registered names, in the order of registration."""
    return tuple(_KINDS)


def resolve(strategy: "PipelineStrategy | str") -> PipelineStrategy:
    """Returns the strategy itself, or the one of that name with its default arguments.

    Raises:
      ValueError: no strategy has this name, or the object is none.
    """
    if isinstance(strategy, str):
        if strategy not in _KINDS:
            raise ValueError(f"strategy must be one of {', '.join(_KINDS)}, got {strategy!r}")
        return _KINDS[strategy]()
    if isinstance(strategy, type) or not isinstance(strategy, PipelineStrategy):
        raise ValueError(f"strategy must be a name or a pipeline strategy, got {strategy!r}")
    return strategy


def check_microbatches(field: str, value: int | None) -> int | None:
    """Returns a number of microbatches as an int of at least 1, or None, else `ValueError`."""
    return None if value is None else checks.integer(field, value, 1, checks.MAX_INT32)


def check_stages(num_stages: int, layers: LayerGraph, cluster: Cluster) -> int:
    """Returns a number of stages that layers and devices allow, else `ValueError`."""
    limits = {"layers": len(layers.layers), "devices": cluster.num_devices}
    for what, limit in limits.items():
        if num_stages > limit:
            raise ValueError(
                f"num_stages must be at most the number of {what}, {limit}, got {num_stages}"
            )
    return checks.integer("num_stages", num_stages, 1)
