"""Fits the processor model to whole steps: what is to be predicted is what is fitted.

A step under a plan is: what comes before backward computation, backward as `simulate` says, and
what comes after it. The model's parameters and these two times are chosen so that simulated
all-reduces begin and end, and simulated steps end, when the measured ones did.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from tf_libra.cost_model import ProcessorModel
from tf_libra.model.plan import Plan
from tf_libra.model.profile import BackwardProfile
from tf_libra.simulation import simulate
from tf_libra.tuning.step_times import StepTimes

_Array = NDArray[np.float64]

# How exactly a step is known, and when one of its all-reduces begins or ends, in shares of a step.
_STEP_NOISE = 0.02
_SPAN_NOISE = 0.04
# What is known before anything is seen, as logarithms' standard deviations: little, but enough for
# a parameter that the steps do not tell to stay where it is plausible: a scheduler is fair by and
# large, and a lane does little between two pieces.
_VAGUE, _WEIGHT_KNOWN, _GAP_KNOWN = 3.0, 0.5, 1.0
# Where searches begin: all-reduces are work, or on the wire, or both.
_WIRE_STARTS = (0.1, 0.5, 1.0)  # of the time that a byte takes
_WORK_START = 0.5
_WEIGHT_START, _GAP_START = 1.0, 0.1
_LEAST_SECONDS, _LEAST_SECONDS_PER_BYTE = 1e-6, 1e-12


@dataclass(frozen=True)
class Calibration:
    """A processor model and what a step takes besides backward.

    Attributes:
      model: to plan by.
      before_seconds: from the step's start to the start of backward.
      after_seconds: from the end of backward, communication included, to the step's end.
    """

    model: ProcessorModel
    before_seconds: float
    after_seconds: float

    @property
    def rest_seconds(self) -> float:
        """What a step takes besides backward."""
        return self.before_seconds + self.after_seconds

    def step_seconds(self, profile: BackwardProfile, plan: Plan) -> float:
        """What a step under a plan is predicted to take."""
        backward = simulate(profile, plan, self.model).backward_seconds
        return self.rest_seconds + backward


def calibrate(
    profile: BackwardProfile, steps: Sequence[StepTimes], num_workers: int
) -> Calibration:
    """Fits a processor model to the usual steps of several plans.

    Args:
      profile: contention-free backward computation of the same tensors as the plans'.
      steps: usual steps, at least one; of plans that differ in number and size of groups and in
        threads, since what does not differ cannot be told apart.
      num_workers: N >= 2, which the steps were measured on.

    Raises:
      ValueError: no steps, or plans of other tensors than the profile's.
    """
    if not steps:
        raise ValueError("steps must hold at least one plan's, got none")
    shortest, per_byte, first, rest = _scales(steps, num_workers)
    known = 1 / np.array([*[_VAGUE] * 3, _WEIGHT_KNOWN, _GAP_KNOWN, _VAGUE, _VAGUE])
    solutions = []
    for wire in _WIRE_STARTS:
        model_start = (shortest, _WORK_START * per_byte, wire * per_byte, _WEIGHT_START, _GAP_START)
        start = np.log([*model_start, first, rest])

        def residuals(logarithms: _Array, start: _Array = start, known: _Array = known) -> _Array:
            return np.concatenate(
                [*_misses(logarithms, profile, steps, num_workers), known * (logarithms - start)]
            )

        solutions.append(
            optimize.least_squares(
                residuals, start, bounds=(start - 12, start + 12), loss="soft_l1"
            )
        )
    best = min(solutions, key=lambda solution: solution.cost)
    return _calibration(best.x, num_workers)


def _calibration(logarithms: _Array, num_workers: int) -> Calibration:
    *model, before, after = np.exp(logarithms).tolist()
    return Calibration(ProcessorModel(num_workers, *model), before, after)


def _scales(steps: Sequence[StepTimes], num_workers: int) -> tuple[float, float, float, float]:
    """Orders of magnitude: the shortest all-reduce, a byte, before and after backward."""
    sent = sum(sum(step.plan.num_bytes) for step in steps) * 2 * (num_workers - 1) / num_workers
    walls = np.concatenate([step.spans[:, 1] - step.spans[:, 0] for step in steps])
    first = min(float(step.spans[0, 0]) for step in steps)
    rest = float(np.median([step.seconds - step.spans[-1, 1] for step in steps]))
    some = walls[walls > 0]
    return (
        max(float(some.min()) if some.size else 0.0, _LEAST_SECONDS),
        max(float(walls.sum()) / max(sent, 1.0), _LEAST_SECONDS_PER_BYTE),
        max(first, _LEAST_SECONDS),
        max(rest, _LEAST_SECONDS),
    )


def _misses(
    logarithms: _Array, profile: BackwardProfile, steps: Sequence[StepTimes], num_workers: int
) -> list[_Array]:
    """By how much the model misses ends of steps, and starts and ends of all-reduces."""
    found = _calibration(logarithms, num_workers)
    misses = []
    for step in steps:
        timeline = simulate(profile, step.plan, found.model)
        seconds = found.rest_seconds + timeline.backward_seconds
        misses.append(np.array([(seconds / step.seconds - 1) / _STEP_NOISE]))
        spans = np.array([(one.start_seconds, one.end_seconds) for one in timeline.groups])
        # However many groups a plan has, it is one plan.
        weight = step.seconds * _SPAN_NOISE * np.sqrt(spans.size / 2)
        misses.append(((spans + found.before_seconds - step.spans) / weight).ravel())
    return misses
