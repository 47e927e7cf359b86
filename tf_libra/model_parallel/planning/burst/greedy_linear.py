"""DeepPool's Algorithm 1 as printed, for comparison."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tf_libra.model_parallel.planning.burst.costs import Costs, amplification
from tf_libra.model_parallel.planning.burst.strategy import (
    BurstDraft,
    ChainRun,
    EdgeRun,
    Limited,
    register,
)
from tf_libra.planning.tolerance import within
from tf_libra.specs.scaling_profile import ScalingProfile


@register
@dataclass(frozen=True, kw_only=True)
class SearchLinear(Limited):
    """Algorithm 1's plan of a chain.

    The algorithm stores one predecessor per state (layer, devices), the one of least time. It loses
    a slower predecessor that would keep the limit. It stores the first candidate at any
    amplification, so the plan may exceed the limit. The printed loop does not check the last layer,
    which gets the fastest device count within the limit, or the fastest of all.
    """

    name: ClassVar[str] = "search-linear"

    def draft(self, scaling: ScalingProfile) -> BurstDraft:
        """Search; a model that is no chain is a `ValueError`."""
        return BurstDraft(_search(scaling, self.max_amplification))


def _search(scaling: ScalingProfile, max_amplification: float | None) -> ChainRun:
    if not scaling.is_chain:
        raise ValueError("search-linear takes a chain of layers, got a model with branches")
    limit = math.inf if max_amplification is None else max_amplification
    costs = Costs(scaling, math.inf)
    positions = range(len(scaling.device_counts))
    least = [0.0] * len(scaling.device_counts)  # S[i - 1]
    amplified = [0.0] * len(scaling.device_counts)  # Amp(i - 1)
    predecessors: list[list[int]] = []
    for layer in range(scaling.num_layers):
        next_least, next_amplified, chosen = [], [], []
        for g in positions:
            best_amplified = best_seconds = math.inf
            best, entering = 0, 0.0
            for h in positions:
                transition = float(costs.edge(layer - 1, False)[h, g]) if layer else 0.0
                if (
                    within(amplified[h], max(best_amplified, limit))
                    and least[h] + transition <= best_seconds
                ):
                    best_seconds = least[h] + transition
                    best_amplified = min(best_amplified, amplified[h])
                    best, entering = h, transition
            chosen.append(best)
            next_least.append(best_seconds + float(costs.own[layer, g]))
            compute = scaling.compute_seconds[layer]
            next_amplified.append(
                float(
                    amplification(
                        costs.counts[g],
                        entering,
                        (compute[g], scaling.synchronize_seconds[layer, g]),
                        compute[0],
                    )
                )
            )
        least, amplified = next_least, next_amplified
        predecessors.append(chosen)
    allowed = [g for g in positions if within(amplified[g], limit)] or list(positions)
    counts = [min(allowed, key=lambda g: least[g])]
    for chosen in reversed(predecessors[1:]):
        counts.append(chosen[counts[-1]])
    counts.reverse()
    edges = tuple(EdgeRun(edge) for edge in range(scaling.num_layers - 1))
    return ChainRun(tuple(range(scaling.num_layers)), tuple(counts), (None, *edges, None))
