"""Recursive device ordering (RDO): SPP, Algorithm 2."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_libra.specs.cluster import Cluster


def device_order(cluster: Cluster) -> tuple[int, ...]:
    """Return the devices in an order with few slow links between neighbours.

    The cluster is divided by a minimum cut, and each part again, down to single devices. The paper
    leaves the order of a cut's parts open. Of all orders that the cuts allow, this one has the
    fewest missing links between successive devices, then the least sum of 1 / rate.
    """
    count = cluster.num_devices
    rates = cluster.rates
    linked = rates > 0
    # Lengths relative to the slowest link: a missing link is longer than any sum of existing ones.
    lengths = np.full(rates.shape, float(count))
    np.divide(rates[linked].min(initial=np.inf), rates, out=lengths, where=linked)
    # Parts of the cluster; each precedes its two halves.
    parts = [np.arange(count)]
    cuts: dict[int, tuple[int, int]] = {}
    for index, members in enumerate(parts):
        if len(members) > 1:
            side = min_cut(rates[np.ix_(members, members)])
            cuts[index] = len(parts), len(parts) + 1
            # The half with the least number comes first, so that ties follow the numbers.
            parts += [members[side == side[0]], members[side != side[0]]]
    orders: dict[int, _Orders] = {}
    for index in reversed(range(len(parts))):
        if index in cuts:
            left, other = cuts[index]
            orders[index] = _joined(orders.pop(left), orders.pop(other), lengths)
        else:
            orders[index] = _Orders(parts[index], np.zeros((1, 1)))
    first, last = np.unravel_index(int(orders[0].least.argmin()), (count, count))
    found = orders[0].order(int(first), int(last))
    return found if found[0] <= found[-1] else found[::-1]


@dataclass(frozen=True, eq=False)
class _Orders:
    """Shortest orders of a part that its cuts allow, by their ends.

    Attributes:
      members: the n devices, those of the first half first.
      least: length of the shortest order from one member to another, shape [n, n]; infinite if the
        cuts allow none.
      parts: the two halves; empty for a single device.
      between: lengths from the members of one half to those of the other.
    """

    members: NDArray[np.int64]
    least: NDArray[np.float64]
    parts: "tuple[_Orders, _Orders] | None" = None
    between: NDArray[np.float64] | None = None

    def order(self, first: int, last: int) -> tuple[int, ...]:
        """Return the shortest order from one member to another, both by index."""
        found = []
        left = [(self, first, last)]
        while left:
            part, first, last = left.pop()
            if part.parts is None or part.between is None:
                found.append(int(part.members[0]))
                continue
            first_half, other = part.parts
            border = len(first_half.members)
            begins = min(first, last)
            ends = max(first, last) - border
            ways = first_half.least[begins][:, None] + part.between + other.least[:, ends]
            stops, goes_on = (int(i) for i in np.unravel_index(int(ways.argmin()), ways.shape))
            if first < border:
                left += [(other, goes_on, ends), (first_half, begins, stops)]
            else:
                left += [(first_half, stops, begins), (other, ends, goes_on)]
        return tuple(found)


def _joined(first: _Orders, other: _Orders, lengths: NDArray[np.float64]) -> _Orders:
    """Return the orders of two parts together, in either order."""
    border = len(first.members)
    members = np.concatenate([first.members, other.members])
    between = lengths[np.ix_(first.members, other.members)]
    least = np.full((len(members), len(members)), np.inf)
    least[:border, border:] = _shortest(_shortest(first.least, between), other.least)
    least[border:, :border] = least[:border, border:].T
    return _Orders(members, least, (first, other), between)


def _shortest(first: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the min-plus product of [a, b] and [b, c]."""
    return np.stack([(row[:, None] + other).min(axis=0) for row in first])


def min_cut(weights: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return one side of a minimum cut of a graph, as a mask (Stoer and Wagner 1997).

    Args:
      weights: symmetric, at least 0, shape [n, n], n >= 2.
    """
    weights = np.array(weights, np.float64)
    np.fill_diagonal(weights, 0)
    count = len(weights)
    members = [[index] for index in range(count)]
    best, side = np.inf, members[0]
    while len(weights) > 1:
        # A phase: vertices join by the weight of their edges to joined vertices.
        strength = weights[0].copy()
        strength[0] = -np.inf
        before, last = 0, 0
        for _ in range(len(weights) - 1):
            before, last = last, int(strength.argmax())
            cut = strength[last]
            strength += weights[last]
            strength[last] = -np.inf
        if cut < best:
            best, side = cut, members[last]
        members[before] = members[before] + members[last]
        weights[before] += weights[last]
        weights[:, before] = weights[before]
        weights[before, before] = 0
        weights = np.delete(np.delete(weights, last, 0), last, 1)
        del members[last]
    mask = np.zeros(count, bool)
    mask[side] = True
    return mask
