"""Strategy that lets one rank train the joint batch of all, and its choice of the rank."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tf_libra.internal.registry import ClassRegistry
from tf_libra.internal.values import Int32, Value
from tf_libra.model_parallel.planning.results import RESULTS_DOC, Results
from tf_libra.planning.arguments import argument
from tf_libra.specs.one_rank import OneRankPlan

# Another rank is chosen only if rank 0 takes this many times as long: scripts read and save
# variables on rank 0, which then need not be sent there, and smaller differences may be noise.
CLEARLY_LONGER = 1.05


class OneRankStrategy(Protocol):
    """Strategy that trains on one rank, a frozen dataclass.

    Attributes:
      name: name for users and plans.
      rank: the rank; None: measured.
      results: "joint" or "own".
    """

    name: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def rank(self) -> int | None:
        """Requested rank; None: the fastest."""
        ...

    @property
    def results(self) -> str:
        """Results that ranks get: of the joint batch, or of their own examples."""
        ...


REGISTRY: ClassRegistry[OneRankStrategy] = ClassRegistry(
    "a one-rank strategy of tf_libra.strategies", protocol=OneRankStrategy
)


@REGISTRY.register
@dataclass(frozen=True, kw_only=True)
class OneRank(Value):
    """One rank trains the joint batch of all ranks, and the other ranks wait for its results.

    It needs no all-reduce, and so it is the fastest strategy if sending gradients takes longer
    than computing the other ranks' share of the batch.
    """

    name: ClassVar[str] = "one-rank"
    rank: Int32 | None = argument(
        None,
        "rank that computes; None: the fastest in the first steps, rank 0 unless another rank is"
        " clearly faster.",
    )
    results: Results = argument("joint", RESULTS_DOC, in_training=True)


def fastest_rank_plan(seconds: Sequence[float]) -> OneRankPlan:
    """Returns the plan for the fastest rank; rank 0 if none is clearly faster.

    Args:
      seconds: by rank, the measured computation of one step; infinite for ranks without one.
    """
    fastest = min(range(len(seconds)), key=lambda rank: seconds[rank])
    rank = fastest if seconds[0] > CLEARLY_LONGER * seconds[fastest] else 0
    measured = tuple(seconds) if all(map(math.isfinite, seconds)) else ()
    return OneRankPlan(rank, len(seconds), measured)
