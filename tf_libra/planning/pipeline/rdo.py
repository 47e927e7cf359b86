"""Recursive device ordering: SPP, Algorithm 2."""

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import optimal_leaf_ordering
from scipy.spatial.distance import squareform

from tf_libra.model.cluster import Cluster


def device_order(cluster: Cluster) -> tuple[int, ...]:
    """Returns the devices in an order that keeps slow links between few neighbours.

    The cluster is divided by a minimum cut, and each part again, down to single devices. The paper
    leaves open which part of a cut comes first; of all orders that its cuts allow, this is one with
    the least sum of 1 / rate between successive devices, and where links are missing, with the
    fewest of them.
    """
    count = cluster.num_devices
    if count == 1:
        return (0,)
    rates = cluster.rates
    # Internal nodes of the tree of cuts, each before its parts.
    parts = [np.arange(count)]
    children: list[tuple[int, int]] = []  # of parts, by their place in `parts`
    for members in parts:
        if len(members) == 1:
            children.append((-1, -1))
            continue
        side = min_cut(rates[np.ix_(members, members)])
        children.append((len(parts), len(parts) + 1))
        parts += [members[side], members[~side]]
    linkage: list[tuple[float, float, float, float]] = []
    node: dict[int, int] = {}
    for place in range(len(parts) - 1, -1, -1):
        left, right = children[place]
        if left < 0:
            node[place] = int(parts[place][0])
        else:
            # The heights only have to grow towards the root.
            height = float(len(linkage) + 1)
            node[place] = count + len(linkage)
            linkage.append((node[left], node[right], height, len(parts[place])))
    with np.errstate(divide="ignore"):
        distances = 1 / rates
    linked = np.isfinite(distances)
    missing = 1 + count * distances[linked].max(initial=0)
    distances = np.where(linked, distances, missing) * (1 - np.eye(count))
    # Scaled to 1: the ordering adds up what may be 1e-12 seconds per byte.
    distances /= distances.max()
    ordered = optimal_leaf_ordering(np.array(linkage), squareform(distances, checks=False))
    return _leaves(ordered, count)


def min_cut(weights: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns one side of a minimum cut of a graph, as a mask (Stoer and Wagner 1997).

    Args:
      weights: symmetric, at least 0, shape [n, n], n >= 2.
    """
    weights = np.array(weights, np.float64)
    np.fill_diagonal(weights, 0)
    count = len(weights)
    members = [[index] for index in range(count)]
    best, side = np.inf, members[0]
    while len(weights) > 1:
        # A phase: vertices join by how strongly they hang on those that have joined.
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


def _leaves(linkage: NDArray[np.float64], count: int) -> tuple[int, ...]:
    order = []
    stack = [count + len(linkage) - 1]
    while stack:
        node = stack.pop()
        if node < count:
            order.append(node)
        else:
            left, right = linkage[node - count, :2]
            stack += [int(right), int(left)]
    return tuple(order)
