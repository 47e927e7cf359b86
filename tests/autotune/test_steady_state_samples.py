"""Samples of steady-state steps on machines with known models."""

from dataclasses import replace

import numpy as np
import pytest

from tf_libra.autotune import TensorSpec, random_plans
from tf_libra.autotune.calibration import Calibration
from tf_libra.autotune.cross_validation import steady_state_samples
from tf_libra.autotune.sampling_plans import measuring_plans, one_by_one_plan, one_group_plan
from tf_libra.autotune.step_times import StepTimes
from tf_libra.cost_model import (
    ContentionModel,
    CostModel,
    ProcessorModel,
    computation_errors,
    prediction_errors,
)
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

BEFORE, AFTER = 0.03, 0.006
CONTENDED = ContentionModel(
    2, 1e-4, (1.0, 0.1), (9e8, 2e8, 0.5), (1.5e9, 2e8, 0.5), exclusive_hop_latency=6e-5
)
MACHINES: dict[str, CostModel] = {
    "work": ProcessorModel(2, 2e-4, work_per_byte=6e-10, lane_weight=0.7),
    "wire": ProcessorModel(2, 3e-4, work_per_byte=5e-10, wire_per_byte=8e-9, lane_gap=0.15),
    "LIBRA's": CONTENDED,
}


def a_profile(seed: int, updates: float) -> BackwardProfile:
    random = np.random.default_rng(seed)
    num_bytes = (10 ** random.uniform(3, 6.9, 20)).astype(int)
    return BackwardProfile.from_arrays(
        num_bytes.tolist(),
        random.exponential(2e-3, 20) * (random.random(20) > 0.3) + 1e-5,
        update_seconds=updates * num_bytes / num_bytes.sum(),
    )


def plans_of(profile: BackwardProfile, seed: int) -> list[Plan]:
    specs = [TensorSpec(t.name, t.num_bytes, "float32") for t in profile.tensors]
    return [
        *random_plans(profile, (1, 2, 4), 2, 5, seed=seed),
        *measuring_plans(specs, [2], 2),
        one_by_one_plan(specs, 1, 2),
        one_group_plan(specs, 4, 2, "syneasgd"),
    ]


def steady_step(profile: BackwardProfile, plan: Plan, truth: CostModel) -> StepTimes:
    timeline = simulate(profile, plan, truth)
    spans = np.array([(group.start_seconds, group.end_seconds) for group in timeline.groups])
    ready = np.array([group.ready_seconds for group in timeline.groups])
    seconds = BEFORE + timeline.step_seconds + AFTER
    sending = np.maximum(spans[:, 1] - spans[:, 0] - truth.waiting, 0.0)
    return StepTimes(plan, seconds, BEFORE + spans, BEFORE + ready, sending, 3)


@pytest.mark.parametrize("truth", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("updates", [0.0, 0.015])
def test_true_model_predicts_all_samples(truth: CostModel, updates: float) -> None:
    profile = a_profile(1, updates)
    plans = plans_of(profile, 1)
    steps = [steady_step(profile, plan, truth) for plan in plans]
    samples = steady_state_samples(Calibration(truth, profile, BEFORE, AFTER), steps)
    assert len(samples) == sum(len(plan.groups) for plan in plans)
    # Samples leave out overlaps of less than 20 us, which are up to 3 % slower next to the wire.
    assert np.abs(prediction_errors(truth, samples)).max() < 1e-4
    assert np.abs(computation_errors(truth, samples)).max() < 1e-3
    assert any(sample.overlap_seconds == 0 for sample in samples)
    assert any(sample.residual_seconds == 0 for sample in samples)


def test_samples_begin_when_the_last_rank_arrives() -> None:
    truth, profile = replace(CONTENDED, waiting=3e-3), a_profile(3, 0.0)
    steps = [steady_step(profile, plan, truth) for plan in plans_of(profile, 3)]
    calibration = Calibration(truth, profile, BEFORE, AFTER)
    ends = {step.plan.fingerprint[:16]: (step.spans, step.ready.max()) for step in steps}
    whole = []
    # A simulated wait is spread over its all-reduce, so of those that go on after backward the
    # samples have other shares of overlap.
    for sample in steady_state_samples(calibration, steps):
        spans, computed = ends[sample.plan]
        start, stop = spans[sample.group]
        assert sample.wall_seconds == pytest.approx(stop - start - truth.waiting)
        if stop <= computed or start >= computed:
            whole.append(sample)
    assert np.abs(prediction_errors(truth, whole)).max() < 1e-6
    assert any(whole_sample.overlap_seconds > 0 for whole_sample in whole)


def test_optimistic_model_has_errors_on_samples() -> None:
    profile = a_profile(2, 0.0)
    steps = [
        steady_step(profile, plan, CONTENDED.slowed(0.0, 1.25)) for plan in plans_of(profile, 2)
    ]
    samples = steady_state_samples(Calibration(CONTENDED, profile, BEFORE, AFTER), steps)
    errors = prediction_errors(CONTENDED, samples)
    assert errors.max() < 0
    large = np.array([sample.num_bytes > 4e6 for sample in samples])
    assert np.median(errors[large]) == pytest.approx(1 / 1.25 - 1, abs=0.02)


def test_empty_groups_give_no_samples() -> None:
    profile = BackwardProfile.from_arrays([4_000_000, 0, 0], [0.01, 0.01, 0.01])
    specs = [TensorSpec(t.name, t.num_bytes, "float32") for t in profile.tensors]
    step = steady_step(profile, one_by_one_plan(specs, 1, 2), CONTENDED)
    [sample] = steady_state_samples(Calibration(CONTENDED, profile, BEFORE, AFTER), [step])
    assert (sample.num_bytes, sample.group) == (4_000_000, 0)
    assert sample.residual_seconds == 0
