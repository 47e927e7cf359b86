"""Parametrization of a transmission rate (LIBRA, Eq. 6) for fitting.

Rates are given by their values at the fewest and the most sampled threads, which keeps them
positive and monotone in between.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.float64]

_SHAPE = (0.1, 10.0)  # gamma3 times the sampled range of r**gamma4
_MOST_DECAY = 50.0  # gamma3 times r**gamma4 at the fewest threads: the exponential stays normal


@dataclass(frozen=True)
class RateForm:
    """Transmission rate of Eq. 6 by its value at the fewest threads, its gain and its shape.

    With u = r**gamma4, from u0 at the fewest sampled threads to u1 at the most, and gamma3 =
    shape / (u1 - u0): rate = first·(1 + (exp(gain) - 1)·rise), where rise goes from 0 at u0 to 1
    at u1 as 1 - exp(-gamma3·(u - u0)) does.
    """

    u0: float
    u1: float

    def seconds_per_byte(
        self, u: _Array, first: float, gain: float, shape: float
    ) -> tuple[_Array, dict[str, _Array]]:
        """Returns 1 / rate, and its derivatives by log(first), `gain` and log(shape)."""
        if self.u1 == self.u0:
            per_byte = np.full_like(u, 1 / first)
            return per_byte, {"first": -per_byte, "gain": 0 * u, "shape": 0 * u}
        share = (u - self.u0) / (self.u1 - self.u0)
        decay, whole = np.expm1(-shape * share), math.expm1(-shape)
        rise = decay / whole
        steeper = shape * (decay * math.exp(-shape) - share * (1 + decay) * whole) / whole**2
        gained = math.expm1(gain)
        per_byte = 1 / (first * (1 + gained * rise))
        per_gain = -first * per_byte**2
        return per_byte, {
            "first": -per_byte,
            "gain": per_gain * (1 + gained) * rise,
            "shape": per_gain * gained * steeper,
        }

    def shapes(self) -> tuple[float, float]:
        """Returns the range of `shape` in which gamma2 is finite."""
        if self.u1 == self.u0:
            return _SHAPE
        most = min(_SHAPE[1], _MOST_DECAY * (self.u1 - self.u0) / self.u0)
        return min(_SHAPE[0], most / 10), most

    def gammas(self, first: float, gain: float, shape: float) -> tuple[float, float, float]:
        """Returns (gamma1, gamma2, gamma3) of Eq. 6."""
        if self.u1 == self.u0 or gain == 0:
            return first, 0.0, 0.0
        gamma3 = shape / (self.u1 - self.u0)
        total = first * math.expm1(gain) / -math.expm1(-shape)
        return first + total, total * math.exp(gamma3 * self.u0), gamma3


def share_done(
    spent: _Array,
    transmitted: _Array,
    startup: float,
    rates: tuple[_Array, dict[str, _Array]],
) -> tuple[_Array, dict[str, _Array]]:
    """Returns the share of each all-reduce that is done in the spent seconds.

    The derivatives are by the logarithm of the startup overhead, and by the parameters of
    `RateForm.seconds_per_byte`.
    """
    per_byte, slopes = rates
    seconds = startup + per_byte * transmitted
    done = spent / seconds
    falls = -done / seconds
    return done, {
        "startup": startup * falls,
        **{name: falls * transmitted * slope for name, slope in slopes.items()},
    }


def rate_values(values: dict[str, float], kind: str) -> tuple[float, float, float]:
    """Returns the arguments of `RateForm` for one kind of all-reduce: first rate, gain, shape."""
    return (
        math.exp(values[f"{kind}.first"]),
        values[f"{kind}.gain"],
        math.exp(values[f"{kind}.shape"]),
    )
