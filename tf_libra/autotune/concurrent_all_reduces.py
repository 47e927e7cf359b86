"""Concurrent all-reduces: what the engine can run, and how much they slow each other.

Plans are adapted to the engine's limits. The contention of concurrent all-reduces, gamma of
ASC-WFBP (Eq. 9), is measured and passed to the strategies that use it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from tf_libra.autotune.step_times import StepTimes
from tf_libra.cost_model import CostModel
from tf_libra.planning.data_parallel.asc_wfbp import DEFAULT_CONTENTION
from tf_libra.planning.strategy import Strategy, known_arguments
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan, TensorGroup

# The paper measured 1 < gamma <= 2; shared startup work can make it larger.
_MAX_CONTENTION = 8.0
_Strategy = TypeVar("_Strategy", bound=Strategy)


def max_lanes(strategy: Strategy, runs_streams: bool) -> int:
    """Returns the threads that concurrent all-reduces may use; 0 if the engine runs none."""
    return strategy.num_lanes if runs_streams else 0


def adapt_to_engine(plan: Plan, profile: BackwardProfile, model: CostModel, num_lanes: int) -> Plan:
    """Returns the plan if the engine can run it; else the nearest such plan, predicted again.

    Args:
        plan: plan of one or several streams.
        profile: profile for the prediction.
        model: cost model for the prediction.
        num_lanes: threads that concurrent all-reduces may use; a single stream may always run. 0:
            the engine runs one all-reduce of whole tensors at a time.
    """
    groups: Sequence[TensorGroup] = plan.groups
    notes = []
    if plan.cuts_tensors and not num_lanes:
        groups = to_whole_tensors(groups)
        notes.append("tensors are all-reduced whole: the engine cannot split them")
    if plan.num_streams > 1 and plan.num_lanes > num_lanes:
        groups = [replace(group, stream=0) for group in groups]
        reason = "runs one at a time"
        if num_lanes:
            reason = f"has {num_lanes} lanes, the plan needs {plan.num_lanes}"
        notes.append(f"concurrent all-reduces run sequentially: the engine {reason}")
    if not notes:
        return plan
    plan = replace(plan, groups=tuple(groups), notes=(*plan.notes, *notes))
    seconds = simulate(profile, plan, model).backward_seconds
    return replace(plan, predicted_seconds=seconds)


def to_whole_tensors(groups: Sequence[TensorGroup]) -> list[TensorGroup]:
    """Moves every split tensor into the group that holds its end."""
    whole = []
    start = 0
    for group in groups:
        if group.ended > start:
            group = replace(group, start=start, stop=group.ended, start_byte=0, stop_byte=None)
            whole.append(group)
            start = group.stop
    return whole


def measured_contention(
    profile: BackwardProfile, steps: Sequence[StepTimes], model: CostModel
) -> float:
    """Fits gamma so that simulated all-reduces last as long as the measured ones.

    Args:
      profile: contention-free backward computation of the plans' tensors.
      steps: steady-state steps of plans with several streams, at least one.
      model: cost of sequential all-reduces.

    Raises:
      ValueError: no steps, or the model leaves no computation next to this number of threads.
    """
    if not steps:
        raise ValueError("steps must hold at least one plan's, got none")

    def squared_error(gamma: float) -> float:
        errors = [_squared_errors(profile, step, model, gamma) for step in steps]
        return float(np.concatenate(errors).sum())

    found = optimize.minimize_scalar(squared_error, bounds=(1.0, _MAX_CONTENTION), method="bounded")
    return float(found.x)


def _squared_errors(
    profile: BackwardProfile, step: StepTimes, model: CostModel, gamma: float
) -> NDArray[np.float64]:
    """Returns squared errors of all-reduce durations, relative to the sum of all durations."""
    plan = replace(step.plan, contention=gamma)
    spans = simulate(profile, plan, model).groups
    simulated = np.array([span.end_seconds - span.start_seconds for span in spans])
    measured = step.spans[:, 1] - step.spans[:, 0]
    return np.asarray(((simulated - measured) / max(float(measured.sum()), 1e-9)) ** 2)


def with_measured_contention(strategy: _Strategy, contention: float | None) -> _Strategy:
    """Returns the strategy with the measured gamma, if it takes one and the user gave none."""
    if strategy.contention is not None:
        return strategy
    return replace(strategy, **known_arguments(type(strategy), {"contention": contention}))


def resolve_contention(strategy: Strategy, measured: float | None) -> float:
    """Returns the gamma to plan with: the user's, else the measured one, else the default."""
    if strategy.contention is not None:
        return strategy.contention
    return DEFAULT_CONTENTION if measured is None else measured


def with_contention(plan: Plan, contention: float) -> Plan:
    """Returns the plan with this gamma; unchanged if it has a single stream."""
    return replace(plan, contention=contention) if plan.num_streams > 1 else plan
