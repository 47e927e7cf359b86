"""The contention of concurrent all-reduces, from steps of a machine whose gamma is known."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.autotune.machine import MODEL, NUM_WORKERS, PROFILE
from tf_libra import strategies
from tf_libra.autotune.sampling_plans import random_plans, simultaneous_plan
from tf_libra.autotune.step_times import StepTimes
from tf_libra.autotune.stream_contention import (
    contention_of,
    informed,
    measured_contention,
    with_contention,
)
from tf_libra.cost_model import CostModel, ProcessorModel
from tf_libra.simulation import simulate
from tf_libra.specs.plan import Plan

MODELS = [MODEL, ProcessorModel(NUM_WORKERS, 2e-4, 1.2e-9, 2e-9)]


def usual(plan: Plan, model: CostModel, gamma: float, noise: Sequence[float]) -> StepTimes:
    timeline = simulate(PROFILE, replace(plan, contention=gamma), model)
    starts = np.array([span.start_seconds for span in timeline.groups])
    ends = np.array([span.end_seconds for span in timeline.groups])
    lasted = (ends - starts) * (1 + np.resize(noise, len(starts)))
    spans = np.stack([starts, starts + lasted], 1)
    return StepTimes(plan, timeline.backward_seconds, spans, starts, 3)


@pytest.mark.parametrize("model", MODELS, ids=["libra", "processors"])
@settings(max_examples=30)
@given(gamma=st.floats(1.0, 3.0), noise=st.lists(st.floats(-0.03, 0.03), min_size=6, max_size=6))
def test_gamma_is_recovered(model: CostModel, gamma: float, noise: list[float]) -> None:
    plan = simultaneous_plan(PROFILE, 1, NUM_WORKERS)
    assert plan.num_streams == 2
    found = measured_contention(PROFILE, [usual(plan, model, gamma, noise)], model)
    assert found == pytest.approx(gamma, abs=0.15)


def test_plans_without_a_meeting_say_nothing() -> None:
    [plan] = random_plans(PROFILE, (1,), NUM_WORKERS, 1)
    found = measured_contention(PROFILE, [usual(plan, MODEL, 2.0, [0.0])], MODEL)
    assert found >= 1
    with pytest.raises(ValueError, match="steps must hold at least one plan's"):
        measured_contention(PROFILE, [], MODEL)


def test_only_who_asks_is_told() -> None:
    assert informed(strategies.AscWfbp(), 1.7) == strategies.AscWfbp(contention=1.7)
    assert informed(strategies.AscWfbp(contention=1.2), 1.7).contention == 1.2
    assert informed(strategies.Wfbp(), 1.7) == strategies.Wfbp()
    assert informed(strategies.AscWfbp(), None) == strategies.AscWfbp()


def test_gamma_is_the_users_else_the_measured_else_the_usual() -> None:
    assert contention_of(strategies.Auto(contention=1.2), 1.7) == 1.2
    assert contention_of(strategies.Auto(), 1.7) == 1.7
    assert contention_of(strategies.Libra(), 1.7) == 1.7
    assert contention_of(strategies.Libra(), None) == 1.5


def test_a_plan_of_one_stream_has_no_contention() -> None:
    plan = simultaneous_plan(PROFILE, 1, NUM_WORKERS)
    assert with_contention(plan, 1.7).contention == 1.7
    alone = replace(plan, groups=tuple(replace(group, stream=0) for group in plan.groups))
    assert with_contention(alone, 1.7) == alone
