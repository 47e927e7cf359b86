"""What a planner hands back: a plan that nobody has simulated yet."""

from collections.abc import Sequence
from dataclasses import dataclass

from tf_libra.model.plan import TensorGroup


@dataclass(frozen=True)
class Draft:
    """Groups of a plan, with what a reader should know of how they came about.

    Attributes:
      groups: contiguous ranges in backward order that cover all tensors.
      notes: sentences for the plan's notes.
      contention: gamma of ASC-WFBP, where groups run at once.
    """

    groups: tuple[TensorGroup, ...]
    notes: tuple[str, ...] = ()
    contention: float = 1.0


def groups_from_stops(stops: Sequence[int], threads: Sequence[int]) -> tuple[TensorGroup, ...]:
    """Returns the groups that end before these tensors, with these threads; one stream."""
    starts = [0, *stops[:-1]]
    return tuple(map(TensorGroup, starts, map(int, stops), map(int, threads)))
