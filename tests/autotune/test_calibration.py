"""Calibration on machines with known models."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tf_libra.autotune import TensorSpec, random_plans
from tf_libra.autotune.calibration import calibrate
from tf_libra.autotune.parametric_models import CpuShareFamily
from tf_libra.autotune.sampling_plans import (
    measuring_plans,
    one_by_one_plan,
    one_group_plan,
    two_stream_plan,
)
from tf_libra.autotune.step_times import StepTimes
from tf_libra.cost_model import CostModel, ProcessorModel
from tf_libra.simulation import Timeline, simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

THREADS = (1, 2, 4)
BEFORE, AFTER = 0.03, 0.006
WORK = ProcessorModel(2, 2e-4, work_per_byte=6e-10)
WIRE = ProcessorModel(2, 3e-4, work_per_byte=5e-10, wire_per_byte=8e-9, lane_gap=0.15)
BOTH = ProcessorModel(2, 1e-4, work_per_byte=1.2e-9, wire_per_byte=1.6e-9)
MACHINES = {"work": WORK, "wire": WIRE, "both": BOTH}


def a_profile(seed: int, num_tensors: int = 24) -> BackwardProfile:
    """Returns a profile of few large and many small tensors, some without computation."""
    random = np.random.default_rng(seed)
    num_bytes = (10 ** random.uniform(2, 6.9, num_tensors)).astype(int)
    compute = random.exponential(2e-3, num_tensors) * (random.random(num_tensors) > 0.3)
    return BackwardProfile.from_arrays(num_bytes.tolist(), compute + 1e-5)


def family(truth: ProcessorModel, num_workers: int = 2, per_host: int | None = None) -> Any:
    """Returns the models of which a calibration chooses if the core time of `truth` is measured."""
    return CpuShareFamily(num_workers, truth.work_per_byte, 1, 2, per_host)


def measured(
    profile: BackwardProfile, plan: Plan, truth: ProcessorModel, random: np.random.Generator
) -> StepTimes:
    """Returns the steady-state step on a machine that obeys `truth`, with two ranks' lags."""
    timeline = simulate(profile, plan, truth)
    spans = (
        np.array([(group.start_seconds, group.end_seconds) for group in timeline.groups]) + BEFORE
    )
    seconds = BEFORE + timeline.step_seconds + AFTER
    noise = 1 + 0.01 * random.standard_normal()
    sending = (spans[:, 1] - spans[:, 0]) * noise
    # Ends, other than starts, wait for the rank that is behind.
    spans[:, 1] += random.exponential(0.002 * seconds, len(spans))
    return StepTimes(plan, seconds * noise, spans * noise, ready(timeline) * noise, sending, 3)


def ready(timeline: Timeline) -> NDArray[np.float64]:
    return np.array([group.ready_seconds for group in timeline.groups]) + BEFORE


def tried(profile: BackwardProfile, seed: int) -> list[Plan]:
    specs = [TensorSpec(t.name, t.num_bytes, "float32") for t in profile.tensors]
    return [
        *random_plans(profile, THREADS, 2, 6, seed=seed),
        one_by_one_plan(specs, 1, 2),
        one_group_plan(specs, 1, 2, "syneasgd"),
    ]


@pytest.mark.parametrize("truth", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("seed", range(3))
def test_calibration_predicts_held_out_plans(truth: ProcessorModel, seed: int) -> None:
    profile, random = a_profile(seed), np.random.default_rng(seed)
    steps = [measured(profile, plan, truth, random) for plan in tried(profile, seed)]
    calibration = calibrate(profile, steps, family(truth))
    unseen = random_plans(profile, THREADS, 2, 12, seed=100 + seed)
    errors = [
        calibration.step_seconds(plan)
        / (BEFORE + simulate(profile, plan, truth).backward_seconds + AFTER)
        - 1
        for plan in unseen
    ]
    assert np.median(np.abs(errors)) < 0.02
    assert np.max(np.abs(errors)) < 0.06
    assert abs(np.mean(errors)) < 0.02


@pytest.mark.parametrize("truth", MACHINES.values(), ids=MACHINES)
def test_identifiable_parameters_are_recovered(truth: ProcessorModel) -> None:
    profile, random = a_profile(7), np.random.default_rng(7)
    steps = [measured(profile, plan, truth, random) for plan in tried(profile, 7)]
    found = calibrate(profile, steps, family(truth))
    if truth.work_per_byte > truth.wire_per_byte / 2:  # else it hides behind the wire
        assert found.model.work_per_byte == pytest.approx(truth.work_per_byte, rel=0.25)
    slowest = max(truth.wire_per_byte, truth.work_per_byte)
    alone = 1 / float(found.model.exclusive_rate(2))
    assert alone == pytest.approx(1 / float(truth.exclusive_rate(2)), rel=0.1)
    if truth.wire_per_byte == slowest:
        assert found.model.wire_per_byte == pytest.approx(truth.wire_per_byte, rel=0.15)
    assert found.model.startup == pytest.approx(truth.startup, rel=0.6)
    assert found.before_seconds == pytest.approx(BEFORE, rel=0.1)
    assert found.after_seconds == pytest.approx(AFTER, abs=0.005)
    for r in THREADS:
        if truth.work_per_byte > truth.wire_per_byte / 2:
            rate = float(truth.compute_rate(r))
            assert float(found.model.compute_rate(r)) == pytest.approx(rate, abs=0.12)


def with_updates(profile: BackwardProfile, seconds: float) -> BackwardProfile:
    """Returns the profile with updates that take so long in total, by their bytes."""
    whole = int(profile.num_bytes.sum())
    tensors = (replace(t, update_seconds=seconds * t.num_bytes / whole) for t in profile.tensors)
    return BackwardProfile(tuple(tensors))


@pytest.mark.parametrize("seed", range(3))
def test_all_reduces_next_to_updates_do_not_count_as_exclusive(seed: int) -> None:
    truth, random = WORK, np.random.default_rng(seed)
    profile = a_profile(seed)
    updated = with_updates(profile, 0.03)
    steps = [measured(updated, plan, truth, random) for plan in tried(profile, seed)]
    found = calibrate(profile, steps, family(truth), BEFORE)
    assert float(found.model.exclusive_rate(1)) == pytest.approx(
        float(truth.exclusive_rate(1)), rel=0.1
    )


@pytest.mark.parametrize("seed", range(3))
def test_end_of_backward_is_predicted_although_updates_delay_it(seed: int) -> None:
    """After backward, all-reduces take 4 ms longer, which no parameter describes."""
    truth, random = WORK, np.random.default_rng(seed)
    profile = a_profile(seed)
    updated = with_updates(profile, 0.03)

    def delayed(plan: Plan) -> StepTimes:
        step = measured(updated, plan, truth, random)
        late = np.cumsum(step.spans[:, 1] > step.ready.max() + 1e-9) * 0.004
        spans = step.spans + np.stack([np.append(0.0, late[:-1]), late], axis=1)
        return replace(step, spans=spans)

    plans = tried(profile, seed)
    found = calibrate(profile, [delayed(plan) for plan in plans], family(truth), BEFORE)
    errors = []
    for plan in plans:
        seconds = found.before_seconds + simulate(found.profile, plan, found.model).backward_seconds
        errors.append(seconds / delayed(plan).spans[-1, 1] - 1)
    assert abs(np.median(errors)) < 0.025


def test_exclusive_rate_is_known_from_steps_that_communicate_after_backward() -> None:
    """All-reduces of sampled plans end before backward, so that they show no exclusive rate.

    Steps after backward are traced: they take longer, of which their all-reduces have no part.
    """
    truth = replace(WORK, wire_per_byte=7.5e-10)
    rate = float(truth.exclusive_rate(1))
    computing = [*[0.0] * 12, 0.4]
    profile = BackwardProfile.from_arrays([*[10**6] * 12, 4], computing)
    specs = [TensorSpec(t.name, t.num_bytes, "float32") for t in profile.tensors]
    errors = []
    for seed in range(3):
        random = np.random.default_rng(seed)
        plans = random_plans(profile, THREADS, 2, 4, seed=seed)
        steps = [measured(profile, plan, truth, random) for plan in plans]
        exclusive = [
            measured(profile, plan, truth, random) for plan in measuring_plans(specs, THREADS, 2)
        ]
        exclusive = [replace(step, seconds=2 * step.seconds) for step in exclusive]
        fits = (
            calibrate(profile, seen, family(truth), BEFORE) for seen in (steps, steps + exclusive)
        )
        errors.append([abs(float(found.model.exclusive_rate(1)) / rate - 1) for found in fits])
    without, known = np.max(errors, axis=0)
    assert known < 0.1
    assert without > 2 * known


def test_a_grid_of_hosts_is_recovered_and_scales() -> None:
    """Four workers on two hosts use two levels; the workers of one host use one."""
    truth = ProcessorModel(4, 4e-4, work_per_byte=6e-10, workers_per_host=2)
    profile, random = a_profile(7), np.random.default_rng(7)
    steps = [measured(profile, plan, truth, random) for plan in tried(profile, 7)]
    found = calibrate(profile, steps, family(truth, 4, 2)).model
    for num_workers in (2, 4, 8):
        expected = truth.with_workers(num_workers).startup_seconds
        startup = found.with_workers(num_workers).startup_seconds
        assert startup == pytest.approx(expected, rel=0.3)
    one_level = calibrate(profile, steps, family(truth, 4)).model
    assert one_level.startup_seconds == pytest.approx(found.startup_seconds, rel=1e-6)
    assert one_level.with_workers(2).startup_seconds == one_level.startup_seconds


@settings(max_examples=5)
@given(st.integers(0, 10**6), st.floats(0.01, 100))
def test_calibration_scales_with_the_machine_speed(seed: int, pace: float) -> None:
    """If everything takes `pace` times as long, so does the prediction."""
    profile, random = a_profile(seed, 8), np.random.default_rng(seed)
    steps = [measured(profile, plan, WIRE, random) for plan in tried(profile, seed)]
    slow_profile = BackwardProfile.from_arrays(
        profile.num_bytes.tolist(), profile.compute_seconds * pace
    )
    slow_steps = [
        replace(
            step,
            seconds=step.seconds * pace,
            spans=step.spans * pace,
            ready=step.ready * pace,
            sending=step.sending * pace,
        )
        for step in steps
    ]
    first = calibrate(profile, steps, family(WIRE))
    slow = replace(WIRE, work_per_byte=WIRE.work_per_byte * pace)
    other = calibrate(slow_profile, slow_steps, family(slow))
    for plan in random_plans(profile, THREADS, 2, 4, seed=seed + 1):
        expected = first.step_seconds(plan) * pace
        assert other.step_seconds(plan) == pytest.approx(expected, rel=0.02)


def another(profile: BackwardProfile, pace: float, updates: float) -> BackwardProfile:
    """Returns the profile with scaled computation and updates."""
    shares = profile.num_bytes / profile.num_bytes.sum()
    return BackwardProfile.from_arrays(
        profile.num_bytes.tolist(),
        profile.compute_seconds * pace,
        update_seconds=(updates * shares).tolist(),
    )


def measured_with_updates(
    profile: BackwardProfile, plan: Plan, truth: CostModel, random: np.random.Generator
) -> StepTimes:
    timeline = simulate(profile, plan, truth)
    spans = (
        np.array([(group.start_seconds, group.end_seconds) for group in timeline.groups]) + BEFORE
    )
    noise = 1 + 0.005 * random.standard_normal()
    seconds = (BEFORE + timeline.step_seconds + AFTER) * noise
    sending = np.maximum(spans[:, 1] - spans[:, 0] - truth.waiting, 0.0) * noise
    return StepTimes(plan, seconds, spans * noise, ready(timeline) * noise, sending, 3)


@pytest.mark.parametrize("pace", [0.8, 1.0, 1.35])
@pytest.mark.parametrize("updates", [0.0, 0.012])
def test_slowdown_since_the_profile_is_fitted(pace: float, updates: float) -> None:
    profile, random = a_profile(5), np.random.default_rng(5)
    now = another(profile, pace, updates)
    steps = [measured_with_updates(now, plan, WIRE, random) for plan in tried(profile, 5)]
    found = calibrate(profile, steps, family(WIRE), BEFORE)
    assert found.before_seconds == pytest.approx(BEFORE, rel=0.05)
    assert found.profile.compute_seconds.sum() == pytest.approx(now.compute_seconds.sum(), rel=0.1)
    for plan in random_plans(profile, THREADS, 2, 8, seed=105):
        timeline = simulate(now, plan, WIRE)
        again = simulate(found.profile, plan, found.model)
        assert again.backward_seconds == pytest.approx(timeline.backward_seconds, rel=0.06)
        step = BEFORE + timeline.step_seconds + AFTER
        assert found.step_seconds(plan) == pytest.approx(step, rel=0.04)


def test_hidden_updates_are_separated_from_the_time_after_them() -> None:
    """Updates during transmissions, which keep no core busy, cost the step nothing."""
    profile, random = a_profile(11), np.random.default_rng(11)
    now = another(profile, 1.0, 0.02)
    steps = [measured_with_updates(now, plan, WIRE, random) for plan in tried(profile, 11)]
    found = calibrate(profile, steps, family(WIRE), BEFORE)
    assert found.profile.updates_before[-1] == pytest.approx(0.02, rel=0.3)
    assert found.after_seconds == pytest.approx(AFTER, abs=0.005)


def test_one_step_alone_is_reproduced() -> None:
    profile, random = a_profile(3), np.random.default_rng(3)
    [plan, *_] = tried(profile, 3)
    step = measured(profile, plan, WIRE, random)
    found = calibrate(profile, [step], family(WIRE))
    assert found.step_seconds(plan) == pytest.approx(step.seconds, rel=0.02)


def test_steps_on_several_streams_are_rejected() -> None:
    profile, random = a_profile(0), np.random.default_rng(0)
    plan = two_stream_plan(profile, 1, 2)
    step = measured(profile, plan, WIRE, random)
    with pytest.raises(ValueError, match=r"^steps.* 2$"):
        calibrate(profile, [step], family(WIRE))


def test_calibration_without_steps_is_rejected() -> None:
    with pytest.raises(ValueError, match="steps must hold at least one"):
        calibrate(a_profile(0), [], family(WIRE))
