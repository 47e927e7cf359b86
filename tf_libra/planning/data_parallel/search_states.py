"""States of searches for the best plan that add one group after another, level by level."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.float64]
_Indices = NDArray[np.int64]


@dataclass(frozen=True)
class SearchStates:
    """States of one level, sorted by l; every array has shape [n].

    Attributes:
        tensors: l, the number of tensors in groups.
        computation: seconds of computation that are left or done, as the search counts them.
        lost: sigma, the seconds that have been lost.
        parent: index of the state before in the level before.
        threads: index into R of the last group's threads.
    """

    tensors: _Indices
    computation: _Array
    lost: _Array
    parent: _Indices
    threads: _Indices

    @classmethod
    def root(cls, computation: float) -> "SearchStates":
        """Returns the state without groups, the first level."""
        none = np.zeros(1, np.int64)
        return cls(none, np.array([computation]), np.zeros(1), none, none)

    @classmethod
    def joined(cls, found: Iterable["SearchStates | None"]) -> "SearchStates | None":
        """Returns the states of one level, found for ascending l; None if there are none."""
        states = [some for some in found if some is not None]
        if not states:
            return None
        names = [field.name for field in fields(cls)]
        return cls(*(np.concatenate([getattr(some, name) for some in states]) for name in names))

    def chosen(self, indices: _Indices) -> "SearchStates":
        """Returns some of the states."""
        return SearchStates(*(getattr(self, field.name)[indices] for field in fields(self)))


def groups_before(levels: Sequence[SearchStates], index: int) -> tuple[list[int], list[int]]:
    """Returns the ends of the groups that lead to a state of the last level, and their threads.

    Args:
        levels: states by number of groups.
        index: index of the state.

    Returns:
        l at the end of each group, and the index of its threads in R, in the groups' order.
    """
    stops, threads = [], []
    for level in levels[:0:-1]:
        stops.append(int(level.tensors[index]))
        threads.append(int(level.threads[index]))
        index = int(level.parent[index])
    return stops[::-1], threads[::-1]
