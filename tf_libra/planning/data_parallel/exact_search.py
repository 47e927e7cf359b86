"""Exact searches for the best plan, which add one group after another: states and pruning.

A lower bound of the loss, and dominance, drop states.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from tf_libra.cost_model import CostModel
from tf_libra.specs.backward_profile import BackwardProfile

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


class ByteLoss:
    """Least loss of bytes, without startup overheads, for a limit of computation to overlap.

    Each byte is either overlapped with some r, which takes rate / x_p seconds of computation and
    loses (1 - rate) / x_p, for the transmission rate x_p of p; or exclusive, which loses at least
    1 / x_q. The cheapest mixture for a limit of computation is the lower convex hull of these
    points.

    Attributes:
        least: loss of a byte with any computation.
    """

    def __init__(self, cost: CostModel, threads: _Indices) -> None:
        rate = cost.compute_rate(threads)
        byte = cost.overlapped_seconds(1, threads)
        alone = float(cost.exclusive_seconds(1, threads).min())
        points = sorted(
            [(0.0, alone), *zip((rate * byte).tolist(), ((1 - rate) * byte).tolist(), strict=True)]
        )
        hull: list[tuple[float, float]] = []
        for point in points:
            if hull and point[1] >= hull[-1][1]:
                continue
            while len(hull) > 1 and _above(hull[-2], hull[-1], point):
                hull.pop()
            hull.append(point)
        self._compute, self._loss = np.array(hull).T
        self.least = float(self._loss[-1])

    def __call__(self, num_bytes: NDArray[np.int64], left: _Array) -> _Array:
        """Returns the seconds that bytes lose with `left` seconds of computation to overlap."""
        per_byte = left / np.maximum(num_bytes, 1)
        return num_bytes * np.interp(per_byte, self._compute, self._loss)


class LossBound:
    """Lower bound of the loss of the rest of a plan.

    Attributes:
        late: least loss from tensor l on, for any remaining computation; shape [L + 1].

    Startup overheads are added to the loss of bytes: the last group's, always.
    """

    def __init__(
        self, profile: BackwardProfile, cost: CostModel, threads: _Indices, max_groups: int
    ) -> None:
        self._mixture = ByteLoss(cost, threads)
        rate = cost.compute_rate(threads)
        # With a rate above 1 a startup overhead gains time instead.
        gained = min(0.0, float(cost.startup_seconds * (1 - rate).min())) * max_groups
        # The last tensor is in the last group, which nothing overlaps.
        last = int(profile.effective_bytes[-1])
        self._certain = gained + float(cost.exclusive_all_reduce(last, threads).min())
        self._bytes = (profile.effective_before[-1] - profile.effective_before - last).clip(0)
        # Bytes of the tensors from j on find no more computation than is left at j's production.
        after = np.append(profile.compute_after[1:], 0.0)
        least = self._mixture.least * self._bytes
        late = self._mixture(self._bytes, after) - least
        self.late = np.maximum.accumulate(late[::-1])[::-1] + least + self._certain

    def __call__(self, tensors: int | _Indices, left: _Array) -> _Array:
        """Returns the least seconds lost after l tensors with s left; shape of `left`."""
        now = self._mixture(self._bytes[tensors], left) + self._certain
        return np.maximum(now, self.late[tensors])


def _above(
    first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]
) -> bool:
    """Returns True if the middle point lies on or above the line between the others."""
    slope = (last[1] - first[1]) * (middle[0] - first[0])
    return (middle[1] - first[1]) * (last[0] - first[0]) >= slope


class ParetoFront:
    """Undominated states of one l, over all levels so far.

    A state is dropped if another has no larger u = time + m·s and no larger v = time + M·s.
    """

    def __init__(self) -> None:
        self._u = np.empty(0)  # increasing
        self._v = np.empty(0)  # decreasing

    def enter(self, u: _Array, v: _Array) -> _Indices:
        """Add states [n]; return the indices of the undominated ones."""
        old = self._u.size
        u, v = np.concatenate([self._u, u]), np.concatenate([self._v, v])
        order = np.lexsort((np.arange(u.size), v, u))  # of equals, the older one
        v_ordered = v[order]
        lowest = np.minimum.accumulate(v_ordered)
        order = order[np.concatenate([[True], v_ordered[1:] < lowest[:-1]])]
        self._u, self._v = u[order], v[order]
        return order[order >= old] - old
