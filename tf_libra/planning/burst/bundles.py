"""Links of one shape, which are looked at together: what `blocks` has, B times.

Models repeat themselves, and NumPy takes as long for one small array as for a few dozen of them.
What is found for a link is what would be found for it alone, down to which of equally good ways it
is. So links are kept apart where it is up to their times how many ways are kept, and that decides
how they are looked at: where a branch ends in a block of its own.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_libra.planning.burst.blocks import Block, Chain, Edge, Link

Indices = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges.

    Attributes:
      targets: the layers that they lead to, shape [B].
      index: as of each `Edge`, shape [B].
      real: whether they are the profile's, all of them; else none is.
    """

    targets: Indices
    index: Indices
    real: bool


@dataclass(frozen=True, eq=False)
class Chains:
    """Chains of n layers.

    Attributes:
      targets: the layers that they lead to, shape [B].
      layers: of each `Chain`, shape [n, B].
      links: n + 1.
    """

    targets: Indices
    layers: Indices
    links: tuple["Bundle", ...]


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of as many branches.

    Attributes:
      targets: the layers where their branches join, shape [B].
      branches: of each `Block`.
    """

    targets: Indices
    branches: tuple["Edges | Chains", ...]


Bundle = Edges | Chains | Blocks


def alike(links: Sequence[Link], most: int) -> list[list[int]]:
    """Returns the positions of links that can be bundled, at most so many together."""
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
    """Bundles links of one shape; `targets`: the layers that they lead to, shape [B]."""
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
