"""What plans bursts: the protocol of a strategy, and who is known by which name."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tf_libra import checks
from tf_libra.model.scaling import ScalingProfile
from tf_libra.planning.burst.decisions import ChainRun
from tf_libra.registry import Registry


@dataclass(frozen=True)
class BurstDraft:
    """What a planner hands back: a decision that nobody has put into a schedule yet.

    Attributes:
      run: how many devices per layer, and what runs beside what.
      notes: sentences for the plan's notes.
    """

    run: ChainRun
    notes: tuple[str, ...] = ()


class BurstStrategy(Protocol):
    """A frozen dataclass that holds the arguments of a planner, and plans by them.

    Attributes:
      name: what users, plans and tables call it.
    """

    name: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def max_amplification(self) -> float | None:
        """What no layer's amplification may exceed; None: no limit."""
        ...

    @property
    def device_counts(self) -> tuple[int, ...] | None:
        """The numbers of devices that layers may have, ascending, from 1; None: any."""
        ...

    @property
    def num_devices(self) -> int | None:
        """That of every layer, where it is fixed."""
        ...

    def draft(self, scaling: ScalingProfile) -> BurstDraft:
        """Which layer runs on how many devices; `ValueError` for a model that it does not take."""
        ...


@dataclass(frozen=True, kw_only=True)
class Limited:
    """What strategies have in common that keep a limit on amplification.

    Attributes:
      max_amplification: what no layer's amplification may exceed, at least 1; None: no limit.
    """

    max_amplification: float | None = None

    def __post_init__(self) -> None:
        if self.max_amplification is not None:
            limit = checks.real("max_amplification", self.max_amplification, minimum=1)
            object.__setattr__(self, "max_amplification", limit)

    @property
    def device_counts(self) -> tuple[int, ...] | None:
        """Any."""
        return None

    @property
    def num_devices(self) -> int | None:
        """Each layer has its own."""
        return None


REGISTRY: Registry[BurstStrategy] = Registry(
    "a burst strategy of tf_libra.strategies", protocol=BurstStrategy, usual=(Limited,)
)
BY_NAME = REGISTRY.by_name
register = REGISTRY.register
find = REGISTRY.find
resolve = REGISTRY.resolve
