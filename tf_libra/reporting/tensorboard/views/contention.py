"""View of the contention model and its samples."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tf_libra.cost_model import CostModel, computation_errors, prediction_errors
from tf_libra.reporting.records.plan import PlanRecord

# Number of points of a fitted curve.
_CURVE_POINTS = 60


def contention_view(record: PlanRecord) -> dict[str, Any]:
    """Returns the samples, the fitted curves and the errors."""
    cost, samples = record.conclusion.cost_model, record.conclusion.samples
    view: dict[str, Any] = {
        "threads": list(record.threads),
        "num_workers": record.plan.num_workers,
        "median_error": record.conclusion.median_error,
        "weighted_error": None,
        "held_out_error": record.conclusion.held_out_error,
        "held_out_backward_error": record.conclusion.held_out_backward_error,
        "is_accurate": record.conclusion.evidence.is_accurate,
        "model": None,
        "curves": None,
        "samples": [],
        "notes": list(record.conclusion.notes),
    }
    if cost is None:
        return view
    view["model"] = {
        "formula": cost.formula(),
        "startup_seconds": cost.startup_seconds,
        "exclusive_startup_seconds": cost.exclusive_startup_seconds,
    }
    most = max([*record.threads, *(s.num_threads for s in samples)])
    view["curves"] = _curves(cost, most)
    view["at_threads"] = [
        {
            "num_threads": r,
            "slowdown": 1 / float(cost.compute_rate(r)),
            "overlapped_rate": float(cost.overlapped_rate(r)),
            "exclusive_rate": float(cost.exclusive_rate(r)),
        }
        for r in record.threads
        if _possible(cost, r)
    ]
    if samples:
        errors = prediction_errors(cost, samples)
        # Many short all-reduces may have large errors and little weight.
        view["weighted_error"] = _weighted_median(
            np.abs(errors), np.array([sample.wall_seconds for sample in samples])
        )
        computing = iter(computation_errors(cost, samples).tolist())
        for sample, error in zip(samples, errors.tolist(), strict=True):
            overlapped = sample.overlap_seconds > 0
            startup = cost.startup_seconds if overlapped else cost.exclusive_startup_seconds
            predicted = sample.wall_seconds * (1 + error)
            sending = sample.wall_seconds - startup
            tells_rate = sending > 0 and predicted >= 2 * startup
            hat = float(cost.transmitted_bytes(sample.num_bytes))
            view["samples"].append(
                dataclasses.asdict(sample)
                | {
                    "error": error,
                    "predicted_seconds": predicted,
                    "compute_error": next(computing) if sample.compute_seconds > 0 else None,
                    "slowdown": (
                        sample.overlap_seconds / sample.compute_seconds
                        if sample.compute_seconds > 0
                        else None
                    ),
                    # An all-reduce of mostly startup does not determine a rate.
                    "rate": hat / sending if tells_rate else None,
                }
            )
    return view


def _weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    order = np.argsort(values)
    before = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(before, before[-1] / 2)]])


def _possible(cost: CostModel, num_threads: float) -> bool:
    try:
        cost.compute_rate(num_threads), cost.overlapped_rate(num_threads)
        cost.exclusive_rate(num_threads)
    except ValueError:
        return False
    return True


def _curves(cost: CostModel, most: int) -> dict[str, list[float]]:
    """Returns the fitted formulas over 1 to `most` threads while rates are positive."""
    grid = [r for r in np.linspace(1, max(most, 2), _CURVE_POINTS).tolist() if _possible(cost, r)]
    return {
        "num_threads": grid,
        "slowdown": (1 / cost.compute_rate(grid)).tolist() if grid else [],
        "overlapped_rate": cost.overlapped_rate(grid).tolist() if grid else [],
        "exclusive_rate": cost.exclusive_rate(grid).tolist() if grid else [],
    }
