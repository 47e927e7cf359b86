"""Separate callbacks for residuals and derivatives that one function computes together."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.float64]


def split_fun_and_jac(
    both: Callable[[tuple[float, ...]], tuple[_Array, _Array]],
) -> tuple[Callable[[_Array], _Array], Callable[[_Array], _Array]]:
    """Returns functions of residuals alone and of derivatives alone.

    A search requests the derivatives at the point of its last residuals: the cached pair serves
    both. Each result is a copy, as SciPy scales the arrays that it gets in place.

    Args:
      both: computes residuals and derivatives at a point.
    """

    @lru_cache(maxsize=1)
    def around(point: tuple[float, ...]) -> tuple[_Array, _Array]:
        return both(point)

    def of(vector: _Array, which: int) -> _Array:
        return np.array(around(tuple(vector.tolist()))[which])

    return lambda vector: of(vector, 0), lambda vector: of(vector, 1)
