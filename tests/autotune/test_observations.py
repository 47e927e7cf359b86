"""Observations of recorded trials."""

from dataclasses import replace

import numpy as np
import pytest

from tests.autotune.machine import BEFORE, NUM_WORKERS, PROFILE, SHARED, Machine
from tf_libra.autotune import Phase, Trial, TrialResult, measuring_plans, random_plans
from tf_libra.autotune.observations import Observations


def observed(num_plans: int, steps: int) -> Observations:
    machine, findings = Machine(), Observations()
    for plan in random_plans(PROFILE, (1, 2, 4), NUM_WORKERS, num_plans):
        for _ in range(steps):
            findings.record(Trial(Phase.SAMPLE, plan, traced=True), machine.run(plan))
    return findings


def test_held_out_plan_has_no_remaining_steps() -> None:
    findings = observed(4, 3)
    plans = list(dict.fromkeys(step.plan.fingerprint for step in findings.overlapped))
    for fingerprint in plans:
        others = findings.without(fingerprint)
        assert len(others) == len(findings.overlapped) - 3
        assert {step.plan.fingerprint for step in others} == {*plans} - {fingerprint}


def test_steps_are_recorded_by_phase() -> None:
    machine, findings = Machine(), Observations()
    measuring = measuring_plans(machine.specs(), (1, 2), NUM_WORKERS)
    for plan in measuring:
        findings.record(Trial(Phase.MEASURE, plan, traced=True), machine.run(plan))
    assert [step.plan for step in findings.after_backward] == measuring
    assert findings.overlapped == []
    profile = findings.profile(machine.specs())
    assert profile is not None
    assert profile.profile.names == PROFILE.names


def test_step_without_all_reduces_gives_productions_only() -> None:
    machine, findings = Machine(), Observations()
    [plan] = measuring_plans(machine.specs(), (1,), NUM_WORKERS)
    silent = replace(machine.run(plan), records=())
    findings.record(Trial(Phase.MEASURE, plan, traced=True), silent)
    findings.record(Trial(Phase.SAMPLE, plan, traced=True), silent)
    assert len(findings.after_backward) == 1
    assert findings.overlapped == []


def test_slow_traced_steps_are_scaled() -> None:
    machine, findings = Machine(), Observations()
    plans = [*measuring_plans(machine.specs(), (1, 2, 4), NUM_WORKERS)]
    plans += random_plans(PROFILE, (1, 2, 4), NUM_WORKERS, 6)
    for index, plan in enumerate(plans):
        phase = Phase.MEASURE if plan.after_backward else Phase.SAMPLE
        findings.record(Trial(phase, plan, traced=True), machine.run(plan))
        of_phase = findings.after_backward if plan.after_backward else findings.overlapped
        if index in (0, 4, 5):
            of_phase[-1] = of_phase[-1].scaled(1.38)
    paced, plain = findings.at_steady_speed(), [*findings.after_backward, *findings.overlapped]
    for index, step in enumerate([*paced.after_backward, *paced.overlapped]):
        before = plain[index]
        assert step.before_ns == pytest.approx(BEFORE * 1e9, abs=2)
        times = 1.38 if index in (0, 4, 5) else 1.0
        for name in ("started_ns", "finished_ns"):
            then, now = (
                getattr(observed.records[-1], name) - observed.called_ns
                for observed in (before, step)
            )
            assert then == pytest.approx(times * now, abs=3)
        produced = [
            observed.production.produced_ns - observed.called_ns for observed in (before, step)
        ]
        np.testing.assert_allclose(produced[0], times * produced[1], atol=3)
    assert paced.profile(machine.specs(), PROFILE.names) is not None


@pytest.mark.parametrize("before", [0.3, 6.0])
def test_step_that_waited_for_data_is_not_scaled(before: float) -> None:
    """Neither is a step that did not wait: the time before backward is ambiguous then."""
    findings = observed(5, 1)
    step = findings.overlapped[2]
    waited_ns = round((before - 1) * BEFORE * 1e9)
    findings.overlapped[2] = replace(step, called_ns=step.called_ns - waited_ns)
    assert findings.at_steady_speed().overlapped == findings.overlapped


def test_cost_of_tracing_is_excluded_before_backward() -> None:
    machine, findings = Machine(), Observations()
    for plan in random_plans(PROFILE, (1, 2, 4), NUM_WORKERS, 4):
        findings.record(Trial(Phase.SAMPLE, plan, traced=False), machine.run(plan))
        findings.record(Trial(Phase.SAMPLE, plan, traced=True), machine.run(plan))
        findings.overlapped[-1] = findings.overlapped[-1].scaled(1.15)
    assert findings.before_seconds() == pytest.approx(1.15 * BEFORE)
    assert findings.before_seconds(findings.steady_state_steps()) == pytest.approx(BEFORE)


def test_steps_that_communicate_after_backward_show_its_start() -> None:
    """One of the traced steps under sampled plans began with a pause; three others did not."""
    machine, findings = Machine(), Observations()
    plans = random_plans(PROFILE, (1, 2, 4), NUM_WORKERS, 4)
    for plan in plans:
        findings.record(Trial(Phase.SAMPLE, plan, traced=False), machine.run(plan))
    findings.record(Trial(Phase.SAMPLE, plans[0], traced=True), machine.run(plans[0]))
    late = findings.overlapped[0]
    findings.overlapped[0] = replace(late, called_ns=late.called_ns - 10_000_000)
    for pace in (1.05, 1.15, 1.25):
        [plan] = measuring_plans(machine.specs(), (1,), NUM_WORKERS)
        findings.record(Trial(Phase.MEASURE, plan, traced=True), machine.run(plan))
        findings.after_backward[-1] = findings.after_backward[-1].scaled(pace)
    assert findings.before_seconds(findings.steady_state_steps()) == pytest.approx(BEFORE)
    findings.after_backward.clear()
    assert findings.before_seconds(findings.steady_state_steps()) > 1.03 * BEFORE


def test_core_time_per_byte_is_that_of_all_steps() -> None:
    machine, findings = Machine(model=SHARED), Observations()
    assert findings.core_seconds_per_byte(NUM_WORKERS) == 0
    for plan in random_plans(PROFILE, (1, 2, 4), NUM_WORKERS, 2):
        for traced in (False, True):
            findings.record(Trial(Phase.SAMPLE, plan, traced), machine.run(plan))
    found = findings.core_seconds_per_byte(NUM_WORKERS)
    assert found == pytest.approx(SHARED.work_per_byte, rel=1e-4)


def test_problems_are_counted_and_leave_no_profile() -> None:
    machine, findings = Machine(), Observations()
    [plan] = measuring_plans(machine.specs(), (1,), NUM_WORKERS)
    for problem in ("busy", "busy", "lost"):
        experiment = Trial(Phase.MEASURE, plan, traced=True)
        findings.record(experiment, TrialResult(None, (), problem))
    assert findings.problems == {"busy": 2, "lost": 1}
    assert findings.profile(machine.specs()) is None
    assert len(findings.problems) == 3
