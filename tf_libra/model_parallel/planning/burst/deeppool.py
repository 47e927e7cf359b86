"""DeepPool: the fastest plan within a limit on amplification (section 4)."""

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tf_libra.model_parallel.planning.burst.branch_blocks import MANY, Branches
from tf_libra.model_parallel.planning.burst.costs import Array, Costs, amplification
from tf_libra.model_parallel.planning.burst.edge_batches import alike, bundle
from tf_libra.model_parallel.planning.burst.graph_reduction import Chain, Link, reduce_graph
from tf_libra.model_parallel.planning.burst.schedule import make_schedule
from tf_libra.model_parallel.planning.burst.strategy import BurstDraft, ChainRun, Limited, register
from tf_libra.planning.arguments import argument
from tf_libra.planning.tolerance import TOLERANCE
from tf_libra.specs.scaling_profile import DeviceCounts, ScalingProfile

# Cells (link, g, h) per batch of several links.
_POSITIONS = 2048


@register
@dataclass(frozen=True, kw_only=True)
class DeepPool(Limited):
    """The plan of least iteration time with every layer within the limit.

    If no plan keeps the limit: the fastest plan with the least largest amplification, with a note.
    """

    name: ClassVar[str] = "deeppool"
    device_counts: DeviceCounts | None = argument(
        None,
        "allowed numbers of devices for a measured training step, ascending, from 1; None: "
        "the powers of two below the number of workers, and that number. Those of a profile "
        "have to be equal.",
        in_training=True,
    )

    def draft(self, scaling: ScalingProfile) -> BurstDraft:
        """Search all plans; other device counts of the profile are a `ValueError`."""
        if self.device_counts not in (None, scaling.device_counts):
            raise ValueError(
                f"device_counts must be those of the profile, {scaling.device_counts}, got"
                f" {self.device_counts}"
            )
        search = ExactSearch(scaling)
        limit = math.inf if self.max_amplification is None else self.max_amplification
        run = search.solve(limit)
        if run is not None:
            return BurstDraft(run, search.notes)
        run, least = _least_largest(scaling, search, limit)
        note = (
            f"no plan keeps every layer's amplification within {limit:g}; the largest is"
            f" {least:.6g}, the least that is possible"
        )
        return BurstDraft(run, (*search.notes, note))


class ExactSearch:
    """Exact search of the plan of least iteration time under a limit on amplification.

    A layer's amplification depends on its device count and on its incoming transition. The
    transition into a layer with one predecessor depends on both device counts. Along a chain, the
    best plan is therefore a shortest path through states (layer, device count) without the
    forbidden steps. DeepPool's Algorithm 1 checks steps only after it has chosen one predecessor
    per state.

    A block of branches is one step of that path (`branch_blocks`).

    The graph of a profile is reduced once for all limits.
    """

    def __init__(self, scaling: ScalingProfile) -> None:
        """Reduce the graph; branches that form no blocks are a `ValueError`."""
        self._scaling = scaling
        first, last, link = reduce_graph(scaling.num_layers, scaling.edges, scaling.names)
        self._layers, links = _trunk(first, last, link)
        size = len(scaling.device_counts)
        # Beyond `MANY` paths, times decide how many remain; see `edge_batches`.
        groups = alike(links, max(1, _POSITIONS // size**2) if size <= MANY else 1)
        targets = np.array(self._layers[1:], np.intp)
        self._bundles = [bundle([links[i] for i in group], targets[group]) for group in groups]
        # For each link: its bundle and its position in the bundle.
        self._positions = [(0, 0)] * len(links)
        for number, group in enumerate(groups):
            for index, position in enumerate(group):
                self._positions[position] = number, index
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
        for number, index in self._positions:
            total = best[:, None] + steps[number][index]
            back.append(total.argmin(axis=0))
            best = total.min(axis=0)
        if not np.isfinite(best).any():
            return None
        self.notes = tuple(note for number, _ in self._positions for note in notes[number])
        chosen = [int(best.argmin())]
        for column in reversed(back):
            chosen.append(int(column[chosen[-1]]))
        chosen.reverse()
        runs = [
            branches.step_run(self._bundles[number], cap, index, *pair)
            for (number, index), pair in zip(
                self._positions, itertools.pairwise(chosen), strict=True
            )
        ]
        return ChainRun(self._layers, tuple(chosen), (None, *runs, None))


def _trunk(first: int, last: int, link: Link | None) -> tuple[tuple[int, ...], tuple[Link, ...]]:
    if link is None:
        return (first,), ()
    if isinstance(link, Chain):
        return (first, *link.layers, last), link.links
    return (first, last), (link,)


def _least_largest(
    scaling: ScalingProfile, search: ExactSearch, infeasible: float
) -> tuple[ChainRun, float]:
    """Return the fastest plan under the least feasible limit.

    Bisects between an infeasible limit and the largest amplification of a known plan, so the result
    is the exact amplification of a plan.
    """
    low = max(infeasible, _bound(scaling))
    run = search.solve(low)
    if run is not None:
        return run, _largest(scaling, run)
    run = search.solve(math.inf)
    assert run is not None
    high = _largest(scaling, run)
    if math.isinf(high):
        # Even the largest finite limit may be infeasible.
        finite = search.solve(np.finfo(np.float64).max / 2)
        if finite is None:
            return run, high
        run, high = finite, _largest(scaling, finite)
    while high > low * (1 + 4 * TOLERANCE):
        middle = low + (high - low) / 2 if high < 2 * low else math.sqrt(low) * math.sqrt(high)
        found = search.solve(middle)
        if found is None:
            low = middle
        else:
            run, high = found, min(middle, _largest(scaling, found))
    best = search.solve(high)
    return (run if best is None else best), high


def _bound(scaling: ScalingProfile) -> float:
    """Return a lower bound of the largest amplification: the maximum of each layer's least."""
    counts = np.array(scaling.device_counts, np.float64)
    compute, synchronize = scaling.compute_seconds, scaling.synchronize_seconds
    least = amplification(counts, np.zeros(()), (compute, synchronize), compute[:, :1])
    return max(1.0, float(least.min(axis=1).max()))


def _largest(scaling: ScalingProfile, run: ChainRun) -> float:
    return max(make_schedule(scaling, run, "", None).amplification)
