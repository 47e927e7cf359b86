"""Fit of a contention model to measured all-reduces (LIBRA, III-A and Algorithm 2, line 3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from tf_libra.cost_model.assumptions import NOTABLE
from tf_libra.cost_model.communication_fit import fit_communication
from tf_libra.cost_model.contention import ContentionModel
from tf_libra.cost_model.least_squares import OUTLIER
from tf_libra.cost_model.samples import (
    OverlapSample,
    SampleColumns,
    computation_errors,
    prediction_errors,
)
from tf_libra.internal import validation

_Array = NDArray[np.float64]

_LEAST_RATE = 1e-3  # of alpha1 - alpha2·r over the sampled r


@dataclass(frozen=True)
class FitResult:
    """A fitted model and how far it can be trusted.

    Attributes:
      model: the fitted model.
      median_error: median of |`prediction_errors`| over the samples it was fitted to.
      median_computation_error: median of |`computation_errors`|; None without overlap.
      notes: what the samples could not determine, and the choice instead.
      warnings: contradictions between the samples and the planners' assumptions or the formulas.
    """

    model: ContentionModel
    median_error: float
    median_computation_error: float | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def fit(
    samples: Sequence[OverlapSample],
    num_workers: int,
    exponent: float = 0.6,
    hops: int | None = None,
    workers_per_host: int | None = None,
) -> FitResult:
    """Fit g, p, q and the startup overhead to measured all-reduces.

    Exclusive, overlapped and mixed all-reduces are fitted together: each is to satisfy
    overlap/(p + a) + residual/(q + a) = 1 (LIBRA, Eqs. 9-11). All-reduces without overlap get a
    separate startup overhead if the samples are fitted clearly better with one. What the samples
    cannot determine takes its simplest value, with an entry in `notes`. The model is always finite,
    and its rates are positive over the sampled threads.

    There, and for all sizes, the model keeps LIBRA's Assumptions 2 and 3. If the samples contradict
    one, `warnings` say by how much, and the result is the closest model that keeps both.

    Args:
      samples: measured on `num_workers` workers; some tens to hundreds, over several r and sizes.
      num_workers: N >= 2.
      exponent: gamma4 of Eq. 6, not fitted.
      hops: as for `ContentionModel`; None: those of a ring all-reduce.
      workers_per_host: as for `ContentionModel`; None: an all-reduce has one level.

    Raises:
      ValueError: no samples, or an argument out of its range.
    """
    num_workers = validation.integer("num_workers", num_workers, 2, validation.MAX_INT32)
    exponent = validation.real("exponent", exponent, above=0)
    columns = SampleColumns.from_samples(samples)
    notes: list[str] = []
    warnings: list[str] = []
    compute = _fit_computation(columns, notes, warnings)
    shape = ContentionModel(
        num_workers,
        0.0,
        compute,
        (1, 0, 0),
        (1, 0, 0),
        exponent,
        hops=hops,
        workers_per_host=workers_per_host,
    )
    model = fit_communication(columns, shape, notes, warnings)
    errors = np.abs(computation_errors(model, samples))
    return FitResult(
        model=model,
        median_error=float(np.median(np.abs(prediction_errors(model, samples)))),
        median_computation_error=float(np.median(errors)) if errors.size else None,
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def _fit_computation(
    columns: SampleColumns, notes: list[str], warnings: list[str]
) -> tuple[float, float]:
    """Returns (alpha1, alpha2) with 0 < alpha1 - alpha2·r <= 1 over the sampled r (Eq. 5)."""
    computing = columns.compute > 0
    if not computing.any():
        notes.append("compute: no sample overlaps computation; taken as (1, 0), no contention")
        return 1.0, 0.0
    ratio = columns.compute[computing] / columns.overlap[computing]
    threads = columns.threads[computing]
    least, most = columns.threads.min(), columns.threads.max()
    constant = threads.min() == threads.max()
    # A short overlap is measured with a large relative error.
    weight = np.minimum(1.0, columns.overlap[computing] / np.median(columns.overlap[computing]))

    def rate(parameters: _Array) -> _Array:
        position = (threads - least) / (most - least) if most > least else np.zeros_like(threads)
        return parameters[0] * (1 - position * (1 - (1.0 if constant else parameters[1])))

    solution = optimize.least_squares(
        lambda parameters: weight * np.log(ratio / rate(parameters)),
        x0=np.array([0.8] if constant else [0.8, 0.8]),
        bounds=(_LEAST_RATE, 1.0),
        loss="soft_l1",
        f_scale=OUTLIER,
    )
    first = float(solution.x[0])
    if constant:
        notes.append(
            f"compute: overlapped with r = {threads[0]:g} only, which does not determine alpha2; "
            "taken as 0"
        )
        return first, 0.0
    alpha2 = first * (1 - float(solution.x[1])) / float(most - least)
    for r in np.unique(threads):
        measured = float(np.median(ratio[threads == r]))
        if measured > NOTABLE:
            warnings.append(
                f"compute: next to r = {r:g} threads computation ran {measured:.2f} times as fast"
                " as profiled alone; the model allows 1 at most"
            )
    return first + alpha2 * float(least), alpha2
