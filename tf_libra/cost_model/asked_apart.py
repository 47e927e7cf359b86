"""Residuals and their derivatives, which searches ask for apart and which are computed together."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.float64]


def asked_apart(
    both: Callable[[tuple[float, ...]], tuple[_Array, _Array]],
) -> tuple[Callable[[_Array], _Array], Callable[[_Array], _Array]]:
    """Returns functions of residuals alone and of derivatives alone.

    A search asks for the derivatives where it has just been: that computes nothing again. Each
    answer is the caller's own, as scipy scales those that it gets where they lie.

    Args:
      both: residuals and derivatives at a point.
    """

    @lru_cache(maxsize=1)
    def around(point: tuple[float, ...]) -> tuple[_Array, _Array]:
        return both(point)

    def of(vector: _Array, which: int) -> _Array:
        return np.array(around(tuple(vector.tolist()))[which])

    return lambda vector: of(vector, 0), lambda vector: of(vector, 1)
