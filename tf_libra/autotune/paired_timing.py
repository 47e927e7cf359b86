"""Relative step times of plans, from adjacent steps.

A machine that others use, or that throttles, keeps one pace for seconds and then another: steps
that follow each other mostly have the same pace. So the comparison uses the differences of steps
that are neighbours, or neighbours but one, under different plans; plans that were never neighbours
are compared through others that were. If the pace changes between two steps, their difference is
off, and counts the less the farther off it is (a regression with Cauchy's weights, squared).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

# How far apart steps may be that are compared.
_LAGS = (1, 2)
_ITERATIONS = 20
# Differences this many deviations off count a quarter.
_FAR_OFF = 2.0
_MEDIAN_OF_NORMAL = 0.6745
# Clocks and schedulers tell steps apart no better than this.
_LEAST_NOISE = 1e-6

_Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PairedTimings:
    """Comparison of plans by steps that they ran in turns.

    Attributes:
      logarithms: of each plan's seconds, their mean taken out, [plans].
      covariance: of these, [plans, plans].
      freedom: steps beyond those that it takes to tell anything.
    """

    logarithms: _Array
    covariance: _Array
    freedom: int

    def lead(self, plan: int, other: int) -> tuple[float, float]:
        """Compare a plan's step with another's.

        Returns:
          The ratio of their seconds, and the probability of one as great between equal plans.
        """
        return float(np.exp(self._apart(plan, other))), self.chance(plan, other)

    def chance(self, plan: int, other: int, by: float = 0.0) -> float:
        """The probability of such a difference between plans of which one is longer by `by`.

        Args:
          plan: whose step is found the longer one.
          other: than whose.
          by: logarithm of a ratio.
        """
        apart = self._apart(plan, other) - by
        variance = (
            self.covariance[plan, plan]
            + self.covariance[other, other]
            - 2 * self.covariance[plan, other]
        )
        if self.freedom < 1:
            return 1.0
        deviations = apart / np.sqrt(max(variance, _LEAST_NOISE**2))
        return float(special.stdtr(self.freedom, -deviations))  # Student's t

    def _apart(self, plan: int, other: int) -> float:
        return float(self.logarithms[plan] - self.logarithms[other])


def standings(plans: Sequence[int], seconds: Sequence[float], count: int) -> PairedTimings:
    """Compares plans by steps in the order in which they were made.

    Args:
      plans: whose each step was, below `count`.
      seconds: of each step, above 0.
      count: of plans, each of which had a step.
    """
    of_plan = np.eye(count)[np.asarray(plans, dtype=int)]
    logarithms = np.log(np.asarray(seconds, dtype=float))
    before, after = np.concatenate(
        [np.stack([np.arange(len(plans) - lag), np.arange(lag, len(plans))]) for lag in _LAGS],
        axis=1,
    )
    # Two steps of one plan say nothing of another.
    apart = np.any(of_plan[after] != of_plan[before], axis=1)
    before, after = before[apart], after[apart]
    rows = of_plan[after] - of_plan[before]
    if not len(rows):
        return PairedTimings(np.zeros(count), np.zeros((count, count)), 0)
    measured = logarithms[after] - logarithms[before]
    weights = np.ones(len(rows))
    previous = np.full(count, np.inf)
    for _ in range(_ITERATIONS):
        weighted = rows.T * weights
        inverse = np.linalg.pinv(weighted @ rows)
        found = inverse @ weighted @ measured
        if np.abs(found - previous).max() < _LEAST_NOISE:
            break
        previous = found
        off = np.abs(measured - rows @ found)
        deviation = max(float(np.median(off)) / _MEDIAN_OF_NORMAL, _LEAST_NOISE)
        weights = 1 / (1 + (off / (_FAR_OFF * deviation)) ** 2) ** 2
    # A step is in several differences: what is independent is the noise of steps.
    by_difference = (inverse @ weighted).T
    by_step = np.zeros((len(plans), count))
    np.add.at(by_step, after, by_difference)
    np.subtract.at(by_step, before, by_difference)
    freedom = len(plans) - count
    noise = deviation**2 / 2 * len(plans) / max(freedom, 1)
    return PairedTimings(found - found.mean(), by_step.T @ by_step * noise, freedom)
