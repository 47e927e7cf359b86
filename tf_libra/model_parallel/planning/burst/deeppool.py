"""DeepPool: the fastest plan within a limit on amplification (section 4)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tf_libra.model_parallel.planning.burst.costs import amplification
from tf_libra.model_parallel.planning.burst.exact import ExactSearch
from tf_libra.model_parallel.planning.burst.schedule import make_schedule
from tf_libra.model_parallel.planning.burst.strategy import BurstDraft, ChainRun, Limited, register
from tf_libra.planning.arguments import argument
from tf_libra.planning.tolerance import TOLERANCE
from tf_libra.specs.scaling_profile import DeviceCounts, ScalingProfile


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
