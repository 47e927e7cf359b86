"""Measured contention of concurrent all-reduces: gamma of ASC-WFBP, Eq. 9."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from tf_libra import strategies
from tf_libra.autotune.step_times import StepTimes
from tf_libra.cost_model import CostModel
from tf_libra.planning.data_parallel.asc_wfbp import USUAL_CONTENTION
from tf_libra.planning.strategy import known_arguments
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

# The paper measured 1 < gamma <= 2; more is possible where startup is work that they share.
_MOST = 8.0
_Strategy = TypeVar("_Strategy", bound=strategies.Strategy)


def measured_contention(
    profile: BackwardProfile, steps: Sequence[StepTimes], model: CostModel
) -> float:
    """The gamma with which simulated all-reduces take as long as the measured ones.

    Args:
      profile: contention-free backward computation of the same tensors as the plans'.
      steps: usual steps of plans whose groups are on several streams, at least one.
      model: what all-reduces cost one after the other.

    Raises:
      ValueError: no steps, or the model leaves computation nothing next to so many threads.
    """
    if not steps:
        raise ValueError("steps must hold at least one plan's, got none")

    def miss(gamma: float) -> float:
        return float(np.concatenate([_misses(profile, step, model, gamma) for step in steps]).sum())

    found = optimize.minimize_scalar(miss, bounds=(1.0, _MOST), method="bounded")
    return float(found.x)


def _misses(
    profile: BackwardProfile, step: StepTimes, model: CostModel, gamma: float
) -> NDArray[np.float64]:
    """Squares of the seconds by which all-reduces are missed, as shares of all of them."""
    plan = dataclasses.replace(step.plan, contention=gamma)
    spans = simulate(profile, plan, model).groups
    simulated = np.array([span.end_seconds - span.start_seconds for span in spans])
    measured = step.spans[:, 1] - step.spans[:, 0]
    return np.asarray(((simulated - measured) / max(float(measured.sum()), 1e-9)) ** 2)


def informed(strategy: _Strategy, contention: float | None) -> _Strategy:
    """The strategy with the gamma that was measured, if it asks for one and was not given any."""
    if strategy.contention is not None:
        return strategy
    return dataclasses.replace(
        strategy, **known_arguments(type(strategy), {"contention": contention})
    )


def contention_of(strategy: strategies.Strategy, measured: float | None) -> float:
    """The gamma to plan with: the user's, else the measured one, else what is usual."""
    if strategy.contention is not None:
        return strategy.contention
    return USUAL_CONTENTION if measured is None else measured


def with_contention(plan: Plan, contention: float) -> Plan:
    """The plan with this gamma, which is of no effect on one stream and left out there."""
    return dataclasses.replace(plan, contention=contention) if plan.num_streams > 1 else plan
