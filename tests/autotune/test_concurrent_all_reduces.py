"""Plans adapted to engines, and measured contention of concurrent all-reduces."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.autotune.machine import MODEL, NUM_WORKERS, PROFILE
from tf_libra import strategies
from tf_libra.autotune.concurrent_all_reduces import (
    adapt_to_engine,
    measured_contention,
    resolve_contention,
    with_contention,
    with_measured_contention,
)
from tf_libra.autotune.sampling_plans import random_plans, two_stream_plan
from tf_libra.autotune.step_times import StepTimes
from tf_libra.cost_model import CostModel, ProcessorModel
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan, TensorGroup

SIZES = (8, 12, 4, 20)
CUT_PROFILE = BackwardProfile.from_arrays(SIZES, (1e-3, 0.0, 2e-3, 1e-3))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draws plans cut between elements of four bytes, on up to three streams."""
    stops = list(itertools.accumulate(SIZES))
    cuts = draw(st.sets(st.integers(1, stops[-1] // 4 - 1), max_size=6))
    edges_at = []
    for cut in sorted(4 * cut for cut in cuts):
        tensor = sum(stop <= cut for stop in stops)
        edges_at.append((tensor, cut - (stops[tensor - 1] if tensor else 0)))
    edges = [(0, 0), *edges_at, (len(SIZES), 0)]
    groups = tuple(
        TensorGroup(a, d + bool(e), draw(st.integers(1, 3)), draw(st.integers(0, 2)), b, e or None)
        for (a, b), (d, e) in itertools.pairwise(edges)
    )
    return Plan.for_profile(CUT_PROFILE, groups, 2, "by hand")


@given(plans(), st.integers(0, 9))
def test_adapted_plan_can_run_and_is_predicted(plan: Plan, num_lanes: int) -> None:
    found = adapt_to_engine(plan, CUT_PROFILE, MODEL, num_lanes)
    assert found.num_streams == 1 or found.num_lanes <= num_lanes
    assert num_lanes or not found.cuts_tensors
    if found is not plan:
        assert len(found.notes) > len(plan.notes)
        assert found.predicted_seconds == pytest.approx(
            simulate(CUT_PROFILE, found, MODEL).backward_seconds
        )
    else:
        assert num_lanes or not plan.cuts_tensors


@given(plans())
def test_whole_tensor_is_in_the_group_of_its_end(plan: Plan) -> None:
    found = adapt_to_engine(plan, CUT_PROFILE, MODEL, 0)
    threads = {}
    for group in plan.groups:
        for tensor in range(group.start, group.ended):
            threads[tensor] = group.num_threads
    for group in found.groups:
        assert {threads[i] for i in range(group.start, group.stop)} == {group.num_threads}
    assert len(found.groups) <= len(plan.groups)


def test_runnable_plan_is_unchanged() -> None:
    plan = Plan.for_profile(CUT_PROFILE, (TensorGroup(0, 4, 2),), 2, "by hand")
    assert adapt_to_engine(plan, CUT_PROFILE, MODEL, 0) is plan


MODELS = [MODEL, ProcessorModel(NUM_WORKERS, 2e-4, 1.2e-9, 2e-9)]


def usual(plan: Plan, model: CostModel, gamma: float, noise: Sequence[float]) -> StepTimes:
    timeline = simulate(PROFILE, replace(plan, contention=gamma), model)
    starts = np.array([span.start_seconds for span in timeline.groups])
    ends = np.array([span.end_seconds for span in timeline.groups])
    lasted = (ends - starts) * (1 + np.resize(noise, len(starts)))
    spans = np.stack([starts, starts + lasted], 1)
    return StepTimes(plan, timeline.backward_seconds, spans, starts, lasted, 3)


@pytest.mark.parametrize("model", MODELS, ids=["libra", "processors"])
@settings(max_examples=30)
@given(gamma=st.floats(1.0, 3.0), noise=st.lists(st.floats(-0.03, 0.03), min_size=6, max_size=6))
def test_gamma_is_recovered(model: CostModel, gamma: float, noise: list[float]) -> None:
    plan = two_stream_plan(PROFILE, 1, NUM_WORKERS)
    assert plan.num_streams == 2
    found = measured_contention(PROFILE, [usual(plan, model, gamma, noise)], model)
    assert found == pytest.approx(gamma, abs=0.15)


def test_gamma_without_concurrent_all_reduces_is_arbitrary() -> None:
    [plan] = random_plans(PROFILE, (1,), NUM_WORKERS, 1)
    found = measured_contention(PROFILE, [usual(plan, MODEL, 2.0, [0.0])], MODEL)
    assert found >= 1
    with pytest.raises(ValueError, match=r"steps.*plan's"):
        measured_contention(PROFILE, [], MODEL)


def test_measured_gamma_is_passed_to_strategies_that_take_it() -> None:
    assert with_measured_contention(strategies.AscWfbp(), 1.7) == strategies.AscWfbp(contention=1.7)
    assert with_measured_contention(strategies.AscWfbp(contention=1.2), 1.7).contention == 1.2
    assert with_measured_contention(strategies.Wfbp(), 1.7) == strategies.Wfbp()
    assert with_measured_contention(strategies.AscWfbp(), None) == strategies.AscWfbp()


def test_gamma_is_the_users_else_measured_else_the_default() -> None:
    assert resolve_contention(strategies.Auto(contention=1.2), 1.7) == 1.2
    assert resolve_contention(strategies.Auto(), 1.7) == 1.7
    assert resolve_contention(strategies.Libra(), 1.7) == 1.7
    assert resolve_contention(strategies.Libra(), None) == 1.5


def test_single_stream_plan_has_no_gamma() -> None:
    plan = two_stream_plan(PROFILE, 1, NUM_WORKERS)
    assert with_contention(plan, 1.7).contention == 1.7
    alone = replace(plan, groups=tuple(replace(group, stream=0) for group in plan.groups))
    assert with_contention(alone, 1.7) == alone
