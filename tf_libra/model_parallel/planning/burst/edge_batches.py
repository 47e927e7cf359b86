"""Batches of B links of one shape, in which branch blocks are planned.

Models repeat their structure, and NumPy takes as long for one small array as for a few dozen. A
link has the same result in any batch, down to ties between paths. Links whose branches end in a
block stay in separate batches: their times decide the number of paths and thereby the algorithm.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_libra.model_parallel.planning.burst.graph_reduction import Block, Chain, Edge, Link

Indices = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Edges:
    """Batch of edges.

    Attributes:
      targets: target layers, shape [B].
      index: index of each `Edge`, shape [B].
      real: True if all are edges of the profile; otherwise none is.
    """

    targets: Indices
    index: Indices
    real: bool


@dataclass(frozen=True, eq=False)
class Chains:
    """Batch of chains of n layers.

    Attributes:
      targets: target layers, shape [B].
      layers: layers of each `Chain`, shape [n, B].
      links: n + 1 batches of links.
    """

    targets: Indices
    layers: Indices
    links: tuple["Bundle", ...]


@dataclass(frozen=True, eq=False)
class Blocks:
    """Batch of blocks with the same number of branches.

    Attributes:
      targets: joining layers, shape [B].
      branches: batches of the branches of each `Block`.
    """

    targets: Indices
    branches: tuple["Edges | Chains", ...]


Bundle = Edges | Chains | Blocks


def alike(links: Sequence[Link], most: int) -> list[list[int]]:
    """Return the positions of links per batch, at most `most` in each."""
    found: dict[Hashable, list[list[int]]] = {}
    for position, link in enumerate(links):
        groups = found.setdefault(_shape(link), [[]])
        if len(groups[-1]) == most:
            groups.append([])
        groups[-1].append(position)
    return [group for groups in found.values() for group in groups]


def _shape(link: Link) -> Hashable:
    if isinstance(link, Edge):
        return link.index >= 0
    if isinstance(link, Chain):
        if isinstance(link.links[-1], Block):
            return "chain", id(link)
        return "chain", *map(_shape, link.links)
    return "block", *map(_shape, link.branches)


def bundle(links: Sequence[Link], targets: Indices) -> Bundle:
    """Batch links of one shape with their target layers, shape [B]."""
    blocks = [link for link in links if isinstance(link, Block)]
    if blocks:
        branches = zip(*(block.branches for block in blocks), strict=True)
        return Blocks(targets, tuple(_branches(branch, targets) for branch in branches))
    return _branches(links, targets)


def _branches(links: Sequence[Link], targets: Indices) -> Edges | Chains:
    chains = [link for link in links if isinstance(link, Chain)]
    if not chains:
        index = np.array([link.index for link in links if isinstance(link, Edge)])
        return Edges(targets, index, bool(index[0] >= 0))
    layers = np.array([chain.layers for chain in chains]).T
    inner = zip(*(chain.links for chain in chains), strict=True)
    ends = (*layers, targets)
    return Chains(targets, layers, tuple(map(bundle, inner, ends)))
