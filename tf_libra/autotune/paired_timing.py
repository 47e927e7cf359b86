"""Relative step times of plans, estimated from adjacent steps (robust paired regression).

The speed of a shared or throttled machine changes every few seconds, so adjacent steps mostly ran
at the same speed. The regression uses the differences between steps that are one or two steps apart
and belong to different plans. Plans that were never adjacent are compared through others that were.
A speed change between two steps makes their difference an outlier; squared Cauchy weights reduce
its influence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

# Distances, in steps, between two compared steps.
_LAGS = (1, 2)
_ITERATIONS = 20
# A difference this many deviations off has a quarter of the weight.
_OUTLIER = 2.0
# Median of |x| for a standard normal x.
MEDIAN_OF_NORMAL = 0.6745
# A median of absolute errors estimates a normal deviation as well as the root mean square of 0.37
# times as many errors.
_MEDIAN_EFFICIENCY = 0.37
# Largest confidence limit of a ratio: limits of too few steps stay finite.
_WIDEST_RATIO = 1e9
# Resolution of clocks and schedulers, as a relative step time.
_MIN_NOISE = 1e-6

_Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PairedTimings:
    """Relative step times of plans, from interleaved steps.

    Attributes:
      log_seconds: logarithm of each plan's seconds, with mean 0, [plans].
      covariance: covariance of `log_seconds`, [plans, plans].
      degrees_of_freedom: effective number of independent errors that `covariance` rests on.
    """

    log_seconds: _Array
    covariance: _Array
    degrees_of_freedom: float

    def ratio(self, plan: int, other: int) -> float:
        """Returns the ratio of two plans' seconds, `plan` / `other`."""
        return float(np.exp(self._difference(plan, other)))

    def ratio_limits(self, plan: int, other: int, error: float) -> tuple[float, float]:
        """Returns the confidence limits of the ratio of two plans' seconds.

        The interval excludes 1 exactly if `p_value` is below `error` in one of both directions. It
        is finite: limits beyond a ratio of 1e9 become that ratio.

        Args:
          plan: plan in the numerator.
          other: plan in the denominator.
          error: probability, on each side, that the true ratio is beyond the limit.
        """
        if self.degrees_of_freedom <= 0:
            return 1 / _WIDEST_RATIO, _WIDEST_RATIO
        half = -special.stdtrit(self.degrees_of_freedom, error) * self._deviation(plan, other)
        difference = self._difference(plan, other)
        widest = np.log(_WIDEST_RATIO)
        limits = np.exp(np.clip((difference - half, difference + half), -widest, widest))
        return float(limits[0]), float(limits[1])

    def p_value(self, plan: int, other: int, log_ratio: float = 0.0) -> float:
        """Returns the probability of the measured difference under a hypothesis (one-sided).

        Args:
          plan: plan with the longer step.
          other: plan with the shorter step.
          log_ratio: logarithm of the true ratio of their seconds under the hypothesis.
        """
        if self.degrees_of_freedom <= 0:
            return 1.0
        deviations = (self._difference(plan, other) - log_ratio) / self._deviation(plan, other)
        return float(special.stdtr(self.degrees_of_freedom, -deviations))  # Student's t

    def _deviation(self, plan: int, other: int) -> float:
        """Returns the standard error of the difference of two plans' log seconds."""
        variance = (
            self.covariance[plan, plan]
            + self.covariance[other, other]
            - 2 * self.covariance[plan, other]
        )
        return float(np.sqrt(max(variance, _MIN_NOISE**2)))

    def _difference(self, plan: int, other: int) -> float:
        return float(self.log_seconds[plan] - self.log_seconds[other])


def estimate_paired_timings(
    plans: Sequence[int], seconds: Sequence[float], count: int
) -> PairedTimings:
    """Estimates the relative step times of plans.

    Args:
      plans: plan index of each step in chronological order, below `count`.
      seconds: seconds of each step, above 0.
      count: number of plans, each of which has at least one step.
    """
    is_plan = np.eye(count)[np.asarray(plans, dtype=int)]
    log_seconds = np.log(np.asarray(seconds, dtype=float))
    before, after = np.concatenate(
        [np.stack([np.arange(len(plans) - lag), np.arange(lag, len(plans))]) for lag in _LAGS],
        axis=1,
    )
    differs = np.any(is_plan[after] != is_plan[before], axis=1)
    before, after = before[differs], after[differs]
    rows = is_plan[after] - is_plan[before]
    if not len(rows):
        return PairedTimings(np.zeros(count), np.zeros((count, count)), 0)
    measured = log_seconds[after] - log_seconds[before]
    weights = np.ones(len(rows))
    previous = np.full(count, np.inf)
    for _ in range(_ITERATIONS):
        weighted = rows.T * weights
        inverse = np.linalg.pinv(weighted @ rows)
        found = inverse @ weighted @ measured
        if np.abs(found - previous).max() < _MIN_NOISE:
            break
        previous = found
        errors = np.abs(measured - rows @ found)
        deviation = max(float(np.median(errors)) / MEDIAN_OF_NORMAL, _MIN_NOISE)
        weights = 1 / (1 + (errors / (_OUTLIER * deviation)) ** 2) ** 2
    # Differences share steps: only the noise of the steps is independent.
    by_difference = (inverse @ weighted).T
    by_step = np.zeros((len(plans), count))
    np.add.at(by_step, after, by_difference)
    np.subtract.at(by_step, before, by_difference)
    degrees_of_freedom = len(plans) - count
    noise = deviation**2 / 2 * len(plans) / max(degrees_of_freedom, 1)
    covariance = by_step.T @ by_step * noise
    return PairedTimings(
        found - found.mean(), covariance, _MEDIAN_EFFICIENCY * max(degrees_of_freedom, 0)
    )
