"""The plan of least iteration time under a limit on amplification, exactly.

What a layer's amplification depends on is its own number of devices and what comes in, which for a
layer with one predecessor is a matter of both numbers. Along a chain the best plan therefore is a
shortest path through states (layer, number of devices) from which the forbidden steps are left out;
the steps of DeepPool's Algorithm 1 are judged only after one predecessor per state has been chosen.

A block of branches is one step of that path (`branches`).
"""

import itertools

import numpy as np
from numpy.typing import NDArray

from tf_libra.model.scaling import ScalingProfile
from tf_libra.planning.burst.blocks import Chain, Link, reduce_graph
from tf_libra.planning.burst.branches import Branches
from tf_libra.planning.burst.costs import Costs
from tf_libra.planning.burst.decisions import ChainRun


class Search:
    """The search for one profile; the graph is reduced once for all limits."""

    def __init__(self, scaling: ScalingProfile) -> None:
        """Reduces the graph; `ValueError` where its branches form no blocks."""
        self._scaling = scaling
        self._first, self._last, self._link = reduce_graph(
            scaling.num_layers, scaling.edges, scaling.names
        )
        self.notes: tuple[str, ...] = ()

    def solve(self, limit: float) -> ChainRun | None:
        """Returns the quickest plan whose amplifications are at most `limit`; None: there is none.

        Of plans that take equally long it is one whose later layers have fewer devices.
        """
        costs = Costs(self._scaling, limit)
        branches = Branches(costs)
        layers, links = _trunk(self._first, self._last, self._link)
        cap = len(costs.counts) - 1
        best = costs.start(layers[0])
        back: list[NDArray[np.intp]] = []
        for link, layer in zip(links, layers[1:], strict=True):
            total = best[:, None] + branches.step(link, layer, cap).seconds
            back.append(total.argmin(axis=0))
            best = total.min(axis=0)
        if not np.isfinite(best).any():
            return None
        self.notes = tuple(branches.notes)
        chosen = [int(best.argmin())]
        for column in reversed(back):
            chosen.append(int(column[chosen[-1]]))
        chosen.reverse()
        runs = [
            branches.step_run(link, layer, cap, *pair)
            for link, layer, pair in zip(links, layers[1:], itertools.pairwise(chosen), strict=True)
        ]
        return ChainRun(layers, tuple(chosen), (None, *runs, None))


def _trunk(first: int, last: int, link: Link | None) -> tuple[tuple[int, ...], tuple[Link, ...]]:
    if link is None:
        return (first,), ()
    if isinstance(link, Chain):
        return (first, *link.layers, last), link.links
    return (first, last), (link,)
