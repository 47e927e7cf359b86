"""Fits the processor model to whole steps: what is to be predicted is what is fitted.

A step under a plan is: what comes before backward computation; backward and the updates, as
`simulate` says; and what comes after them. The model's parameters, these times, and how fast the
machine computes now are chosen so that simulated all-reduces begin and end, and simulated steps
end, when the measured ones did.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from tf_libra.autotune.parametric_models import CpuShareFamily, Family, ScaledContentionFamily
from tf_libra.autotune.residuals import Candidates, MeasuredSteps, updated_shares
from tf_libra.autotune.step_times import StepTimes
from tf_libra.cost_model import ContentionModel, CostModel
from tf_libra.cost_model.least_squares import split_fun_and_jac
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

_Array = NDArray[np.float64]

# What is known before anything is seen, as logarithms' standard deviations: little, but enough for
# a parameter that the steps do not tell to stay where it is plausible: a scheduler is fair by and
# large, and a lane does little between two pieces.
_VAGUE, _WEIGHT_KNOWN, _GAP_KNOWN = 3.0, 0.5, 2.0
# How well the start of backward is known where it was measured, and that computation takes as long
# as profiled: a machine that is shared is not as fast all the time, and tracing takes its part. The
# first is what backward's length is counted from: left to steps, it makes up for what the model
# misses of the first small all-reduces, which wait for a core.
_START_KNOWN, _PACE_KNOWN = 0.02, 0.3
# How well it is known that all-reduces that wait for no other rank send as fast in usual steps, and
# the initial value of the waiting time, as a share of the shortest all-reduce.
_TRANSMISSION_KNOWN, _WAITING_START = 0.3, 0.1
# Where searches begin: all-reduces are work, or on the wire, or both.
_WIRE_STARTS = (0.1, 0.5, 1.0)  # of the time that a byte takes
_WORK_START = 0.5
_WEIGHT_START, _GAP_START = 1.0, 0.03
# The share of updates, which can overlap with all-reduces, in the time from the last all-reduce to
# the end of the step: its initial value, and how well that is known.
_UPDATES_START, _UPDATES_KNOWN = 0.25, 2.0
# A search ends when it gains less than this part of its cost, a sum of squares of noise.
_WORTHWHILE = 1e-3
_LEAST_SECONDS, _LEAST_SECONDS_PER_BYTE = 1e-6, 1e-12
_DIFFERENCE = 2.0**-26  # by which a parameter is moved to see what changes with it


@dataclass(frozen=True)
class Calibration:
    """A cost model, and a step besides communication as it was when it was measured.

    Attributes:
      model: to plan by.
      profile: backward computation and updates at the machine's pace of these steps.
      before_seconds: from the step's start to the start of backward.
      after_seconds: from the end of backward and of the updates to the step's end.
    """

    model: CostModel
    profile: BackwardProfile
    before_seconds: float
    after_seconds: float

    @property
    def rest_seconds(self) -> float:
        """Seconds of a step besides backward and the updates."""
        return self.before_seconds + self.after_seconds

    def step_seconds(self, plan: Plan) -> float:
        """Returns the predicted seconds of a step under a plan."""
        return self.rest_seconds + simulate(self.profile, plan, self.model).step_seconds


def calibrate(
    profile: BackwardProfile,
    steps: Sequence[StepTimes],
    num_workers: int,
    before_seconds: float | None = None,
    hops: int | None = 2,
    workers_per_host: int | None = None,
) -> Calibration:
    """Fits a processor model to the usual steps of several plans.

    Args:
      profile: contention-free backward computation of the same tensors as the plans'.
      steps: usual steps, at least one; of plans that differ in number and size of groups and in
        threads, since the fit cannot separate effects that do not vary.
      num_workers: N >= 2, which the steps were measured on.
      before_seconds: from a step's start to the start of backward; None if it was not measured.
      hops: that an all-reduce makes; see `ProcessorModel`.
      workers_per_host: see `ProcessorModel`.

    Raises:
      ValueError: no steps, one under several streams, or plans of other tensors than the profile's.
    """
    times = _Times.of(steps, before_seconds)
    shortest, per_byte = _scales(steps, num_workers)
    measured = MeasuredSteps.of(profile, steps)

    family = CpuShareFamily(num_workers, hops, workers_per_host)
    found = [
        _fitted(
            profile,
            measured,
            times,
            family,
            (shortest, _WORK_START * per_byte, wire * per_byte, _WEIGHT_START, _GAP_START),
            (_VAGUE, _VAGUE, _VAGUE, _WEIGHT_KNOWN, _GAP_KNOWN),
        )
        for wire in _WIRE_STARTS
    ]
    return min(found, key=lambda one: one[1])[0]


def calibrate_beside(
    model: ContentionModel,
    profile: BackwardProfile,
    steps: Sequence[StepTimes],
    before_seconds: float | None = None,
) -> Calibration:
    """Fits all but the shape of the model, which is given; else as `calibrate`.

    The model is of all-reduces that did not wait for other ranks. In a step they do, and for cores
    that others are on: startup overheads are by as much longer as the steps tell, and transmissions
    take as many times as long, overlapped and not.
    """
    times = _Times.of(steps, before_seconds)
    measured = MeasuredSteps.of(profile, steps)
    start = _WAITING_START * _scales(steps, model.num_workers)[0], 1.0
    known = _VAGUE, _TRANSMISSION_KNOWN
    return _fitted(profile, measured, times, ScaledContentionFamily(model), start, known)[0]


@dataclass(frozen=True)
class _Times:
    """Initial values of the search for a step's times, and how well they are known.

    Attributes:
      start: seconds before backward, and from the last all-reduce to the step's end; and the pace.
      known: logarithms' standard deviations.
    """

    start: tuple[float, float, float]
    known: tuple[float, float, float]

    @classmethod
    def of(cls, steps: Sequence[StepTimes], before_seconds: float | None) -> "_Times":
        if not steps:
            raise ValueError("steps must hold at least one plan's, got none")
        rest = float(np.median([step.seconds - step.spans[-1, 1] for step in steps]))
        before, before_known = before_seconds, _START_KNOWN
        if before is None:
            before, before_known = min(float(step.spans[0, 0]) for step in steps), _VAGUE
        start = (max(before, _LEAST_SECONDS), max(rest, _LEAST_SECONDS), 1.0)
        return cls(start, (before_known, _VAGUE, _PACE_KNOWN))


def _fitted(
    profile: BackwardProfile,
    measured: MeasuredSteps,
    times: _Times,
    family: Family,
    model_start: Sequence[float],
    model_known: Sequence[float],
) -> tuple[Calibration, float]:
    """Returns the best fit that the search finds from initial values, and its cost."""
    # The share of updates may well be 0, all others are orders of magnitude.
    start = np.array([_UPDATES_START, *np.log([*times.start, *model_start])])
    known = 1 / np.array([_UPDATES_KNOWN, *times.known, *model_known])
    low, high = start - 12, start + 12
    low[0], high[0] = 0.0, 1.0

    def many_residuals(many: _Array) -> _Array:
        share, (before, rest, pace) = many[:, 0], np.exp(many[:, 1:4]).T
        candidates = Candidates(
            family.costs(np.exp(many[:, 4:]), measured.num_bytes, measured.threads),
            before=before,
            after=(1 - share) * rest,
            pace=pace,
            updates=share * rest,
        )
        return np.concatenate([measured.missed(candidates), known * (many - start)], axis=1)

    def around(point: tuple[float, ...]) -> tuple[_Array, _Array]:
        """Returns the residuals and their derivatives by all parameters, as differences."""
        found = np.array(point)
        steps = np.where(found < 0, -_DIFFERENCE, _DIFFERENCE) * np.maximum(1.0, np.abs(found))
        outside = (found + steps < low) | (found + steps > high)
        moved = found + np.where(outside, -steps, steps)
        rows = np.where(np.eye(len(found), dtype=bool), moved, found)
        residuals = many_residuals(np.stack([found, *rows]))
        return residuals[0], (residuals[1:] - residuals[0]).T / (moved - found)

    missed, missed_slopes = split_fun_and_jac(around)
    found = optimize.least_squares(
        missed,
        start,
        missed_slopes,
        bounds=(low, high),
        loss="soft_l1",
        ftol=_WORTHWHILE,
    )
    share, (before, rest, pace, *parameters) = float(found.x[0]), np.exp(found.x[1:]).tolist()
    paced = _paced(profile, pace, share * rest)
    calibration = Calibration(family.model(parameters), paced, before, (1 - share) * rest)
    return calibration, float(found.cost)


def _paced(profile: BackwardProfile, pace: float, updates: float) -> BackwardProfile:
    """The profile where all computation takes `pace` times as long, with updates of so long."""
    taken = updates * np.diff(updated_shares(profile))
    tensors = (
        replace(tensor, compute_seconds=pace * tensor.compute_seconds, update_seconds=seconds)
        for tensor, seconds in zip(profile.tensors, taken.tolist(), strict=True)
    )
    return BackwardProfile(tuple(tensors))


def _scales(steps: Sequence[StepTimes], num_workers: int) -> tuple[float, float]:
    """Orders of magnitude: the seconds of the shortest all-reduce, and of a byte."""
    sent = sum(sum(step.plan.num_bytes) for step in steps) * 2 * (num_workers - 1) / num_workers
    walls = np.concatenate([step.spans[:, 1] - step.spans[:, 0] for step in steps])
    some = walls[walls > 0]
    return (
        max(float(some.min()) if some.size else 0.0, _LEAST_SECONDS),
        max(float(walls.sum()) / max(sent, 1.0), _LEAST_SECONDS_PER_BYTE),
    )
