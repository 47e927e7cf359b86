"""Exact search of the plan of least iteration time under a limit on amplification.

A layer's amplification depends on its device count and on its incoming transition. The transition
into a layer with one predecessor depends on both device counts. Along a chain, the best plan is
therefore a shortest path through states (layer, device count) without the forbidden steps.
DeepPool's Algorithm 1 checks steps only after it has chosen one predecessor per state.

A block of branches is one step of that path (`branch_blocks`).
"""

import itertools

import numpy as np
from numpy.typing import NDArray

from tf_libra.model_parallel.planning.burst.branch_blocks import MANY, Branches
from tf_libra.model_parallel.planning.burst.costs import Array, Costs
from tf_libra.model_parallel.planning.burst.edge_batches import alike, bundle
from tf_libra.model_parallel.planning.burst.graph_reduction import Chain, Link, reduce_graph
from tf_libra.model_parallel.planning.burst.strategy import ChainRun
from tf_libra.specs.scaling_profile import ScalingProfile

# Cells (link, g, h) per batch of several links.
_PLACES = 2048


class ExactSearch:
    """Search for one profile; the graph is reduced once for all limits."""

    def __init__(self, scaling: ScalingProfile) -> None:
        """Reduce the graph; branches that form no blocks are a `ValueError`."""
        self._scaling = scaling
        first, last, link = reduce_graph(scaling.num_layers, scaling.edges, scaling.names)
        self._layers, links = _trunk(first, last, link)
        size = len(scaling.device_counts)
        # Beyond `MANY` paths, times decide how many remain; see `edge_batches`.
        groups = alike(links, max(1, _PLACES // size**2) if size <= MANY else 1)
        targets = np.array(self._layers[1:], np.intp)
        self._bundles = [bundle([links[i] for i in group], targets[group]) for group in groups]
        # For each link: its bundle and its position in the bundle.
        self._places = [(0, 0)] * len(links)
        for number, group in enumerate(groups):
            for index, position in enumerate(group):
                self._places[position] = number, index
        self.notes: tuple[str, ...] = ()

    def solve(self, limit: float) -> ChainRun | None:
        """Return the fastest plan with amplifications of at most `limit`; None without one.

        Of equal plans, it prefers fewer devices for later layers.
        """
        costs = Costs(self._scaling, limit)
        branches = Branches(costs)
        cap = len(costs.counts) - 1
        steps: list[Array] = []
        notes: list[list[str]] = []
        for links in self._bundles:
            noted = len(branches.notes)
            steps.append(branches.step(links, cap).seconds)
            notes.append(branches.notes[noted:])
        best = costs.start(self._layers[0])
        back: list[NDArray[np.intp]] = []
        for number, index in self._places:
            total = best[:, None] + steps[number][index]
            back.append(total.argmin(axis=0))
            best = total.min(axis=0)
        if not np.isfinite(best).any():
            return None
        self.notes = tuple(note for number, _ in self._places for note in notes[number])
        chosen = [int(best.argmin())]
        for column in reversed(back):
            chosen.append(int(column[chosen[-1]]))
        chosen.reverse()
        runs = [
            branches.step_run(self._bundles[number], cap, index, *pair)
            for (number, index), pair in zip(self._places, itertools.pairwise(chosen), strict=True)
        ]
        return ChainRun(self._layers, tuple(chosen), (None, *runs, None))


def _trunk(first: int, last: int, link: Link | None) -> tuple[tuple[int, ...], tuple[Link, ...]]:
    if link is None:
        return (first,), ()
    if isinstance(link, Chain):
        return (first, *link.layers, last), link.links
    return (first, last), (link,)
