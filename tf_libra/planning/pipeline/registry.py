"""What plans pipelines: the protocol of a strategy, and who is known by which name."""

import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

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


_Kind = TypeVar("_Kind", bound=type[PipelineStrategy])
_KINDS: dict[str, type[PipelineStrategy]] = {}
BY_NAME: Mapping[str, type[PipelineStrategy]] = types.MappingProxyType(_KINDS)


def register(kind: _Kind) -> _Kind:
    """A decorator: makes a strategy known by its name, here and in every table of pipelines.

    Raises:
      ValueError: it is no frozen dataclass with a name and defaults for all arguments, or another
        strategy has the name.
    """
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or not name:
        raise ValueError(f"strategy: name must be a text that is not empty, got {name!r}")
    if not getattr(getattr(kind, "__dataclass_params__", None), "frozen", False):
        raise ValueError(f"strategy {name!r} must be a frozen dataclass, got {kind!r}")
    if name in _KINDS and _KINDS[name] is not kind:
        raise ValueError(f"strategy: name must be new, got {name!r}, which {_KINDS[name]!r} has")
    kind()
    _KINDS[name] = kind
    return kind


def resolve(strategy: PipelineStrategy | str) -> PipelineStrategy:
    """Returns the strategy itself, or the one of that name with its default arguments.

    Raises:
      ValueError: no strategy has this name.
    """
    if isinstance(strategy, str):
        if strategy not in BY_NAME:
            raise ValueError(f"strategy must be one of {', '.join(BY_NAME)}, got {strategy!r}")
        return BY_NAME[strategy]()
    if type(strategy) not in BY_NAME.values():
        raise ValueError(
            f"strategy must be a name or an object of a pipeline strategy, "
            f"{', '.join(BY_NAME)}; got {strategy!r}"
        )
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
