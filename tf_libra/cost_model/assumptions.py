"""LIBRA's Assumptions 2 and 3, on which planners rely.

Assumption 2: an all-reduce is no faster overlapped than exclusive. Assumption 3: overlapping is no
slower than running computation and communication one after the other.
"""

import numpy as np
from numpy.typing import NDArray

from tf_libra.cost_model.contention import ContentionModel
from tf_libra.cost_model.samples import SampleColumns
from tf_libra.internal import formatting

_Array = NDArray[np.float64]

NOTABLE = 1.1  # deviations below 10 % are left to noise
_CHECKED = 33  # checked thread counts over the sampled range


def _checked_threads(threads: _Array) -> _Array:
    """Returns the sampled thread counts and some between them."""
    return np.union1d(threads, np.linspace(threads.min(), threads.max(), _CHECKED))


def keeps_assumptions(model: ContentionModel, threads: _Array) -> bool:
    """Returns True if Assumptions 2 and 3 hold for every size; both are linear in the size."""
    r = _checked_threads(threads)
    lost = 1 - model.compute_rate(r)
    startups = model.startup_seconds, model.exclusive_startup_seconds
    rates = model.overlapped_seconds(1, r), model.exclusive_seconds(1, r)
    return all(np.all(p >= q) and np.all(p * lost <= q) for p, q in (startups, rates))


def check_assumptions(model: ContentionModel, columns: SampleColumns, warnings: list[str]) -> None:
    """Add warnings if the model breaks Assumptions 2 or 3 at a typical size."""
    size = float(np.median(columns.num_bytes))
    for r in np.unique(columns.threads):
        overlapped = float(model.overlapped_all_reduce(size, r))
        exclusive = float(model.exclusive_all_reduce(size, r))
        speed = float(model.compute_rate(r))
        where = f"at r = {r:g} and {formatting.size(size)}"
        if overlapped * NOTABLE < exclusive:
            warnings.append(
                f"{where} an all-reduce is faster during computation"
                f" ({formatting.time(overlapped)}) "
                f"than alone ({formatting.time(exclusive)}): Assumption 2 does not hold"
            )
        if overlapped * (1 - speed) > exclusive * NOTABLE:
            warnings.append(
                f"{where} overlapping is slower than one after the other "
                f"({formatting.time(overlapped)} against"
                f" {formatting.time(overlapped * speed + exclusive)}): "
                "Assumption 3 does not hold"
            )
    _check_rates(model, columns, warnings)


def _check_rates(model: ContentionModel, columns: SampleColumns, warnings: list[str]) -> None:
    """Add warnings if more threads were slower: the formula can only keep the rate constant."""
    overlapped = model.overlapped_all_reduce(columns.num_bytes, columns.threads)
    exclusive = model.exclusive_all_reduce(columns.num_bytes, columns.threads)
    for kind, gammas, ratio in (
        ("overlapped", model.overlapped, columns.overlap / overlapped),
        ("exclusive", model.exclusive, columns.residual / exclusive),
    ):
        whole = (columns.overlap == 0) | (columns.residual == 0)
        whole &= ratio > 0
        threads = np.unique(columns.threads[whole])
        if threads.size < 2 or gammas[1] > 1e-12 * gammas[0]:
            continue
        fewest, most = (
            float(np.median(ratio[whole & (columns.threads == r)])) for r in threads[[0, -1]]
        )
        if most > NOTABLE * fewest:
            warnings.append(
                f"{kind}: all-reduces took {most / fewest:.2f} times as long with "
                f"{threads[-1]:g} threads as with {threads[0]:g}; the formula's rate never "
                "falls with r, and is fitted as constant"
            )
