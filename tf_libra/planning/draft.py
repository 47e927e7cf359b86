"""Result of a planner: a plan before simulation."""

from collections.abc import Sequence
from dataclasses import dataclass

from tf_libra.specs.plan import TensorGroup


@dataclass(frozen=True)
class Draft:
    """Groups of a plan, with notes for its reader.

    Attributes:
      groups: contiguous ranges in backward order that cover all tensors.
      notes: sentences for the plan's notes.
      contention: gamma of ASC-WFBP for concurrent groups.
    """

    groups: tuple[TensorGroup, ...]
    notes: tuple[str, ...] = ()
    contention: float = 1.0


def groups_from_stops(stops: Sequence[int], threads: Sequence[int]) -> tuple[TensorGroup, ...]:
    """Return the groups of one stream that end before these tensors, with these threads."""
    starts = [0, *stops[:-1]]
    return tuple(map(TensorGroup, starts, map(int, stops), map(int, threads)))
