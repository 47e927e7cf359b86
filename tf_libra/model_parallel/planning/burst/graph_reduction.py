"""Reduction of a model's graph to chains and blocks of branches (DeepPool 4.2, Fig. 7).

The part between a layer that branches and the layer that joins the branches becomes one link. The
innermost parts are reduced first, until one chain is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Edge:
    """Direct edge between two layers.

    Attributes:
      index: index into the profile's edges; -1 for an edge that joins several inputs or outputs of
        the model for planning.
    """

    index: int


@dataclass(frozen=True)
class Chain:
    """Layers one after the other: `links[0]`, `layers[0]`, `links[1]`, ... , `links[-1]`.

    Attributes:
      layers: at least one.
      links: one more than layers; the first and the last connect to the outside.
    """

    layers: tuple[int, ...]
    links: tuple["Link", ...]


@dataclass(frozen=True)
class Block:
    """Branches between the same two layers; at most one of them is an `Edge`."""

    branches: tuple["Edge | Chain", ...]


Link = Edge | Chain | Block


def reduce_graph(
    num_layers: int, edges: Sequence[tuple[int, int]], names: Sequence[str]
) -> tuple[int, int, Link | None]:
    """Reduce an acyclic graph to one link.

    Args:
      num_layers: L.
      edges: pairs of layers.
      names: names of the layers, for errors.

    Returns:
      The first layer, the last one, and the link between them (None if they are the same). Layer L
      joins several layers without inputs, layer L + 1 several layers without consumers.

    Raises:
      ValueError: branches do not join in the nesting in which they split.
    """
    drawn = [(source, target, Edge(index)) for index, (source, target) in enumerate(edges)]
    sources = sorted(set(range(num_layers)) - {target for _, target, _ in drawn})
    sinks = sorted(set(range(num_layers)) - {source for source, _, _ in drawn})
    first, last = sources[0], sinks[0]
    if len(sources) > 1:
        first = num_layers
        drawn += [(first, layer, Edge(-1)) for layer in sources]
    if len(sinks) > 1:
        last = num_layers + 1
        drawn += [(layer, last, Edge(-1)) for layer in sinks]
    if first == last:
        return first, last, None

    layers = {*range(num_layers), first, last}
    into: dict[int, dict[int, Link]] = {layer: {} for layer in layers}
    out: dict[int, dict[int, Link]] = {layer: {} for layer in layers}
    for source, target, edge in drawn:
        out[source][target] = into[target][source] = edge
    waiting = sorted(layers - {first, last}, reverse=True)
    while waiting:
        layer = waiting.pop()
        if layer not in into or len(into[layer]) != 1 or len(out[layer]) != 1:
            continue
        [(source, before)] = into.pop(layer).items()
        [(target, after)] = out.pop(layer).items()
        del out[source][layer], into[target][layer]
        link: Link = _series(before, layer, after)
        if target in out[source]:
            link = _parallel(out[source][target], link)
            waiting += [end for end in (target, source) if end not in (first, last)]
        out[source][target] = into[target][source] = link
    left = sorted(layer for layer in into if layer not in (first, last))
    if left:
        shown = ", ".join(names[layer] for layer in left[:6])
        raise ValueError(
            "edges must form blocks whose branches join as they parted; these layers are in none: "
            + shown
            + (f" and {len(left) - 6} more" if len(left) > 6 else "")
        )
    return first, last, out[first][last]


def _series(before: Link, layer: int, after: Link) -> Chain:
    layers: tuple[int, ...] = (layer,)
    links: tuple[Link, ...] = (before,)
    if isinstance(before, Chain):
        layers, links = (*before.layers, layer), before.links
    if isinstance(after, Chain):
        return Chain(layers + after.layers, links + after.links)
    return Chain(layers, (*links, after))


def _parallel(first: Link, other: Link) -> Block:
    branches: list[Edge | Chain] = []
    for link in (first, other):
        branches += link.branches if isinstance(link, Block) else [link]
    return Block(tuple(sorted(branches, key=_sort_key)))


def _sort_key(branch: Edge | Chain) -> int:
    return -1 if isinstance(branch, Edge) else min(branch.layers)
