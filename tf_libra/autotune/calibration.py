"""Calibration: fits a CPU-share model to whole steady-state steps, the quantity that is predicted.

A step consists of the time before backward, of backward and the updates as `simulate` predicts
them, and of the time after them. The model's parameters, these times and a slowdown of the machine
are fitted together, so that simulated all-reduces and steps start and end when the measured ones
did.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from tf_libra.autotune.parametric_models import CpuShareFamily
from tf_libra.autotune.residuals import CandidateFits, MeasuredSteps, updated_shares
from tf_libra.autotune.step_times import StepTimes
from tf_libra.cost_model import CostModel
from tf_libra.cost_model.least_squares import split_fun_and_jac
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.effective_bytes import effective_group_bytes
from tf_libra.specs.plan import Plan

_Array = NDArray[np.float64]

# Prior standard deviations of the parameters' logarithms. They keep plausible what steps do not
# determine: the shortest all-reduce is mostly startup, and a lane does little between two pieces.
_VAGUE, _STARTUP_KNOWN, _GAP_KNOWN = 3.0, 0.5, 0.5
# Prior deviations of a measured start of backward, and of the slowdown of the machine. The speed
# of a shared machine varies, and tracing slows steps. The start of backward is kept close to its
# measurement: left free, it absorbs model errors of the first small all-reduces.
_START_KNOWN, _SLOWDOWN_KNOWN = 0.02, 0.3
# Prior deviation of waiting, which is known from the first bytes.
_WAITING_KNOWN = 1.0
_GAP_START = 0.03
# Share of updates in the time from the last all-reduce to the end of the step: initial value and
# prior deviation.
_UPDATES_START, _UPDATES_KNOWN = 0.25, 2.0
# Relative gain below which the optimizer stops.
_WORTHWHILE = 1e-3
_LEAST_SECONDS, _LEAST_SECONDS_PER_BYTE = 1e-6, 1e-12
_PER_BYTE = 5  # index of the seconds per byte among the searched parameters
_MARGIN = 1e-3  # by which their logarithm starts above its bound, at least
_DIFFERENCE = 2.0**-26  # relative step of finite differences


@dataclass(frozen=True)
class Calibration:
    """Cost model, and the computation of a step at the time of the measurement.

    Attributes:
      model: model to plan by.
      profile: backward computation and updates at the machine speed of these steps.
      before_seconds: time from the step's start to the start of backward.
      after_seconds: time from the end of backward and of the updates to the step's end.
    """

    model: CostModel
    profile: BackwardProfile
    before_seconds: float
    after_seconds: float

    @property
    def rest_seconds(self) -> float:
        """Seconds of a step outside backward and the updates."""
        return self.before_seconds + self.after_seconds

    def step_seconds(self, plan: Plan) -> float:
        """Returns the predicted seconds of a step under a plan."""
        return self.rest_seconds + simulate(self.profile, plan, self.model).step_seconds


def calibrate(
    profile: BackwardProfile,
    steps: Sequence[StepTimes],
    family: CpuShareFamily,
    before_seconds: float | None = None,
) -> Calibration:
    """Fits a CPU-share model to steady-state steps of several plans.

    Args:
      profile: contention-free backward computation of the plans' tensors.
      steps: steady-state steps, at least one. Their plans should differ in number and size of
        groups and in threads, since a fit cannot separate effects that do not vary. Of steps that
        communicate after backward only the durations of all-reduces count.
      family: models to choose from, of at least 2 workers.
      before_seconds: time from a step's start to the start of backward; None if unknown.

    Raises:
      ValueError: no steps that overlap, a step under several streams, or plans of other tensors.
    """
    times = _Times.from_steps(steps, before_seconds)
    shortest, per_byte, waiting = _scales(profile, steps, family.num_workers)
    measured = MeasuredSteps.from_steps(profile, steps)
    model_start = shortest, max(per_byte, family.least_per_byte), _GAP_START, waiting
    model_known = _STARTUP_KNOWN, _VAGUE, _GAP_KNOWN, _WAITING_KNOWN
    # The share of updates may be 0; all other parameters are searched as logarithms.
    start = np.array([_UPDATES_START, *np.log([*times.start, *model_start])])
    known = 1 / np.array([_UPDATES_KNOWN, *times.known, *model_known])
    low, high = start - 12, start + 12
    low[0], high[0] = 0.0, 1.0
    low[_PER_BYTE] = np.log(family.least_per_byte) - _MARGIN

    def many_residuals(many: _Array) -> _Array:
        share, (before, rest, slowdown) = many[:, 0], np.exp(many[:, 1:4]).T
        candidates = CandidateFits(
            family.costs(np.exp(many[:, 4:]), measured.num_bytes, measured.threads),
            before=before,
            after=(1 - share) * rest,
            slowdown=slowdown,
            updates=share * rest,
        )
        return np.concatenate([measured.residuals(candidates), known * (many - start)], axis=1)

    def around(point: tuple[float, ...]) -> tuple[_Array, _Array]:
        """Returns the residuals and their derivatives by all parameters (finite differences)."""
        result = np.array(point)
        steps = np.where(result < 0, -_DIFFERENCE, _DIFFERENCE) * np.maximum(1.0, np.abs(result))
        outside = (result + steps < low) | (result + steps > high)
        moved = result + np.where(outside, -steps, steps)
        rows = np.where(np.eye(len(result), dtype=bool), moved, result)
        values = many_residuals(np.stack([result, *rows]))
        return values[0], (values[1:] - values[0]).T / (moved - result)

    residuals, jacobian = split_fun_and_jac(around)
    result = optimize.least_squares(
        residuals,
        start,
        jacobian,
        bounds=(low, high),
        loss="soft_l1",
        ftol=_WORTHWHILE,
    )
    share, (before, rest, slowdown, *parameters) = float(result.x[0]), np.exp(result.x[1:]).tolist()
    scaled = _scaled_profile(profile, slowdown, share * rest)
    return Calibration(family.model(parameters), scaled, before, (1 - share) * rest)


@dataclass(frozen=True)
class _Times:
    """Initial values of a step's times in the search, with their prior deviations.

    Attributes:
      start: seconds before backward, seconds after the last all-reduce, slowdown of the machine.
      known: standard deviations of their logarithms.
    """

    start: tuple[float, float, float]
    known: tuple[float, float, float]

    @classmethod
    def from_steps(cls, steps: Sequence[StepTimes], before_seconds: float | None) -> "_Times":
        steps = [step for step in steps if not step.plan.after_backward]
        if not steps:
            raise ValueError("steps must hold at least one plan's that overlaps, got none")
        rest = float(np.median([step.seconds - step.spans[-1, 1] for step in steps]))
        before, before_known = before_seconds, _START_KNOWN
        if before is None:
            before, before_known = min(float(step.spans[0, 0]) for step in steps), _VAGUE
        start = (max(before, _LEAST_SECONDS), max(rest, _LEAST_SECONDS), 1.0)
        return cls(start, (before_known, _VAGUE, _SLOWDOWN_KNOWN))


def _scaled_profile(profile: BackwardProfile, slowdown: float, updates: float) -> BackwardProfile:
    """Returns the profile with scaled computation, and updates of `updates` seconds in total."""
    update_seconds = updates * np.diff(updated_shares(profile))
    tensors = (
        replace(
            tensor,
            compute_seconds=slowdown * tensor.compute_seconds,
            update_seconds=seconds,
            forward_seconds=slowdown * tensor.forward_seconds,
        )
        for tensor, seconds in zip(profile.tensors, update_seconds.tolist(), strict=True)
    )
    return BackwardProfile(tuple(tensors))


def _scales(
    profile: BackwardProfile, steps: Sequence[StepTimes], num_workers: int
) -> tuple[float, float, float]:
    """Returns orders of magnitude: the shortest all-reduce, seconds per byte, and mean waiting."""
    num_bytes = sum(sum(effective_group_bytes(profile, step.plan)) for step in steps)
    sent = num_bytes * 2 * (num_workers - 1) / num_workers
    sending = np.concatenate([step.sending for step in steps])
    walls = np.concatenate([step.spans[:, 1] - step.spans[:, 0] for step in steps])
    positive = sending[sending > 0]
    waiting = np.maximum(walls - sending, 0.0)[sending > 0]
    return (
        max(float(positive.min()) if positive.size else 0.0, _LEAST_SECONDS),
        max(float(sending.sum()) / max(sent, 1.0), _LEAST_SECONDS_PER_BYTE),
        max(float(waiting.mean()) if waiting.size else 0.0, _LEAST_SECONDS),
    )
