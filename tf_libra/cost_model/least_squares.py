"""Robust least squares over named parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

_Array = NDArray[np.float64]

OUTLIER = 0.1  # residuals beyond 10 % have less and less weight
_LEAST_NOISE = 0.01  # no time is measured better than this
_TINY = 1e-12


@dataclass(frozen=True)
class Parameter:
    """Start and range of a fitted logarithm."""

    start: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Solution:
    """Result of a fit.

    Attributes:
      values: fitted and fixed values, by name.
      cost: robust cost.
      deviations: standard errors of the fitted values, by name.
    """

    values: dict[str, float]
    cost: float
    deviations: dict[str, float]


def minimize(
    parameters: dict[str, Parameter],
    fixed: dict[str, float],
    residuals: Callable[[dict[str, float]], tuple[_Array, dict[str, _Array]]],
) -> Solution:
    """Returns the least robust cost over several starts.

    Args:
      parameters: parameters to fit, by name.
      fixed: values of the other parameters, by name.
      residuals: maps all values to the residuals and their derivatives by each parameter.
    """
    names = list(parameters)
    lower = np.array([p.lower for p in parameters.values()])
    upper = np.array([p.upper for p in parameters.values()])
    start = np.array([p.start for p in parameters.values()])

    def named(vector: _Array) -> dict[str, float]:
        return dict(zip(names, vector.tolist(), strict=True)) | fixed

    def around(point: tuple[float, ...]) -> tuple[_Array, _Array]:
        found, slopes = residuals(dict(zip(names, point, strict=True)) | fixed)
        return found, np.stack([slopes[name] for name in names], axis=1)

    missed, missed_slopes = split_fun_and_jac(around)
    with np.errstate(all="ignore"):
        if not np.isfinite(missed(np.clip(start, lower, upper))).all():
            raise ValueError(
                "samples must have finite times, sizes and numbers of threads to the power of"
                " exponent, at most some hundred orders of magnitude apart"
            )
    solutions = []
    for startup_shift in (0.0, -3.0):
        shifted = start + startup_shift * np.array([name.endswith("startup") for name in names])
        solutions.append(
            optimize.least_squares(
                missed,
                np.clip(shifted, lower + 1e-9, upper - 1e-9),
                missed_slopes,
                bounds=(lower, upper),
                loss="soft_l1",
                f_scale=OUTLIER,
                x_scale="jac",
            )
        )
    best = min(solutions, key=lambda solution: solution.cost)
    # Standard errors from the Gauss-Newton Hessian; a direction without curvature has none.
    curvature, directions = np.linalg.eigh(best.jac.T @ best.jac)
    variance = max(_LEAST_NOISE**2, 2 * best.cost / max(1, len(best.fun) - len(names)))
    spread = directions**2 / np.maximum(curvature, _TINY)
    deviations = np.sqrt(variance * spread.sum(axis=1))
    return Solution(
        named(best.x), float(best.cost), dict(zip(names, deviations.tolist(), strict=True))
    )


def split_fun_and_jac(
    both: Callable[[tuple[float, ...]], tuple[_Array, _Array]],
) -> tuple[Callable[[_Array], _Array], Callable[[_Array], _Array]]:
    """Returns functions for residuals alone and for derivatives alone.

    A search requests the derivatives at the point of its last residuals: the cached pair serves
    both. Each result is a copy, as SciPy scales its arrays in place.

    Args:
      both: computes residuals and derivatives at a point.
    """

    @lru_cache(maxsize=1)
    def compute(point: tuple[float, ...]) -> tuple[_Array, _Array]:
        return both(point)

    def select(vector: _Array, which: int) -> _Array:
        return np.array(compute(tuple(vector.tolist()))[which])

    return lambda vector: select(vector, 0), lambda vector: select(vector, 1)
