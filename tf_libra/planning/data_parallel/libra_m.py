"""LIBRA-M: threads for the groups of MG-WFBP (LIBRA, section IV-A)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tf_libra.cost_model import CostModel
from tf_libra.internal.values import Int32Count, Natural
from tf_libra.planning.arguments import argument
from tf_libra.planning.data_parallel.chunked_costs import ChunkedCosts, NumChunks
from tf_libra.planning.data_parallel.mg_wfbp import MIN_ELEMENTS, merge_stops
from tf_libra.planning.data_parallel.step_refinement import least_step
from tf_libra.planning.strategy import ChosenThreads, Draft, groups_from_stops, register
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

_TABLE = 2**24  # entries: groups times chunks; 8 bytes each


def plan_libra_m(profile: BackwardProfile, cost: CostModel, strategy: "LibraM") -> Draft:
    """Plan MG-WFBP's groups at a fixed r, with Eq. 17's threads for each.

    Eq. 17's threads are within 1 + (K - 1)/Z of the best for these K groups; Z grows with K. If one
    r for all groups is faster nevertheless, the plan has it, and a note says so.
    """
    merged_for = strategy.num_threads or strategy.threads[0]
    stops = merge_stops(profile, cost, merged_for, strategy.min_elements)
    chunks = strategy.chunks_for(len(stops))
    costs = ChunkedCosts(profile, cost, strategy.threads, chunks)
    _, found = allocate_threads(profile, costs, stops)
    notes = [f"merged as MG-WFBP merges at r = {merged_for}"]
    candidates = [found, *([r] * len(stops) for r in strategy.threads)]
    drafts = [groups_from_stops(stops, threads) for threads in candidates]
    seconds = [
        simulate(
            profile, Plan.for_profile(profile, groups, cost.num_workers, strategy.name), cost
        ).step_seconds
        for groups in drafts
    ]
    best = min(range(len(drafts)), key=seconds.__getitem__)
    if seconds[best] >= seconds[0] * (1 - 1e-9):
        best = 0
    else:
        notes.append(
            f"r = {candidates[best][0]} for all {len(stops)} groups beats what Eq. 17 finds on "
            f"{chunks} chunks"
        )
    if profile.has_updates:
        choices = [(tuple(stops), tuple(threads)) for threads in (candidates[best], *candidates)]
        chosen = least_step(profile, cost, choices, strategy.threads, None)
        return Draft(groups_from_stops(*chosen), tuple(notes))
    return Draft(drafts[best], tuple(notes))


def allocate_threads(
    profile: BackwardProfile, costs: ChunkedCosts, stops: list[int]
) -> tuple[float, list[int]]:
    """Returns T(K, Z) of Eq. 17 and the threads of each group, for groups that end at `stops`.

    Ties go to fewer threads.
    """
    Z = costs.chunks
    extra = np.zeros(Z + 1)  # T(i, z) - z·w
    # For each group: the start of the stage that ends at z, and the index of its threads.
    began: list[NDArray[np.int32]] = []
    chosen: list[NDArray[np.int32]] = []
    start = 0
    for stop in stops:
        size = int(profile.effective_before[stop] - profile.effective_before[start])
        start = stop
        first = int(costs.first_chunk[stop])
        best = np.full(Z + 1, np.inf)
        source, index = np.zeros(Z + 1, np.int32), np.zeros(Z + 1, np.int32)
        sizes = np.array([size])
        base, per_chunk = costs.residual_extra(sizes)
        hidden_chunks, hidden_extra = costs.hidden_chunks(sizes), costs.hidden_extra(sizes)
        for j in range(len(costs.threads)):
            hidden = 0 if size == 0 else int(hidden_chunks[j, 0])
            added = 0.0 if size == 0 else float(hidden_extra[j, 0])
            z = np.arange(first + hidden, Z + 1)
            _improve(best, source, index, z, z - hidden, extra[z - hidden] + added, j)
            # The rest of the all-reduce after backward: only a stage that ends at Z may have it.
            edges = np.arange(max(first, Z - hidden + 1), Z + 1)
            if edges.size:
                candidates = extra[edges] + base[j, 0] + per_chunk[j, 0] * (Z - edges)
                least = [int(np.argmin(candidates))]
                _improve(best, source, index, np.array([Z]), edges[least], candidates[least], j)
        began.append(source)
        chosen.append(index)
        extra = best
    threads: list[int] = []
    edge = Z
    for source, index in zip(reversed(began), reversed(chosen), strict=True):
        threads.append(int(costs.threads[index[edge]]))
        edge = int(source[edge])
    return float(profile.compute_after[0] + extra[Z]), threads[::-1]


def _improve(
    best: NDArray[np.float64],
    source: NDArray[np.int32],
    index: NDArray[np.int32],
    z: NDArray[np.int64],
    began: NDArray[np.int64],
    candidates: NDArray[np.float64],
    j: int,
) -> None:
    """Store, in place, the candidates that are better at the edges z."""
    better = candidates < best[z]
    best[z[better]] = candidates[better]
    source[z[better]] = began[better]
    index[z[better]] = j


@register
@dataclass(frozen=True, kw_only=True)
class LibraM(ChosenThreads):
    """LIBRA-M: the groups of MG-WFBP, with LIBRA's choice of threads for each."""

    name: ClassVar[str] = "libra-m"
    chunks: NumChunks = argument(150, "Z, least number of chunks of backward computation.")
    num_threads: Int32Count | None = argument(
        None,
        "fixed r for MG-WFBP's merging; None: the smallest of `threads`.",
    )
    chunks_per_group: Natural = argument(
        10,
        "Z is at least this times K - 1 for K groups, so that Eq. 17's threads are within 1 + "
        "1/`chunks_per_group` of the best. 0: Z does not grow.",
    )
    min_elements: Natural = argument(MIN_ELEMENTS, "as for `MgWfbp`.")

    def chunks_for(self, num_groups: int) -> int:
        """Returns Z for this many groups.

        Z stops growing when a table of all groups and chunks would fill memory, beyond 1300 groups
        at 10 chunks each.
        """
        grown = min(self.chunks_per_group * (num_groups - 1), _TABLE // num_groups)
        return max(self.chunks, grown)

    def draft(self, profile: BackwardProfile, cost: CostModel) -> Draft:
        """Plan MG-WFBP's groups, with threads for each."""
        return plan_libra_m(profile, cost, self)
