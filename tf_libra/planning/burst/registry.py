"""The burst planners by name. A new one is one module that registers itself."""

from collections.abc import Callable
from dataclasses import dataclass

from tf_libra.model.scaling import ScalingProfile
from tf_libra.planning.burst.decisions import ChainRun


@dataclass(frozen=True)
class Request:
    """What is asked of a planner.

    Attributes:
      max_amplification: the limit; None: none.
      num_devices: for planners that give every layer the same number; None: theirs to choose.
    """

    max_amplification: float | None = None
    num_devices: int | None = None


Planner = Callable[[ScalingProfile, Request], tuple[ChainRun, tuple[str, ...]]]

PLANNERS: dict[str, Planner] = {}


def register(name: str) -> Callable[[Planner], Planner]:
    """Returns a decorator that adds a planner: profile and request to decision and notes."""

    def add(planner: Planner) -> Planner:
        assert name not in PLANNERS
        PLANNERS[name] = planner
        return planner

    return add
