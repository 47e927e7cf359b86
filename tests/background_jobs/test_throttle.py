"""The share of time that a background may run next to a simulated foreground."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.background_jobs.machine import Machine, throttled
from tests.drawing import num_examples
from tf_libra.background_jobs.throttle import CYCLE, NUM_BASELINE_STEPS, Throttle

MOST = CYCLE - NUM_BASELINE_STEPS
ALL = MOST / CYCLE  # of the steps, what a background may have
LIMITS = st.sampled_from([0.01, 0.02, 0.05, 0.1, 0.3])
MACHINES = st.builds(
    Machine,
    step_seconds=st.sampled_from([0.005, 0.05, 0.3, 2.0]),
    noise=st.sampled_from([0.0, 0.03, 0.1]),
    phase_seconds=st.sampled_from([0.0, 1.0, 3.0, 10.0]),
)
same_examples = settings(max_examples=num_examples(60), derandomize=True, deadline=None)


@same_examples
@given(LIMITS, st.floats(0.0, 4.0), MACHINES, st.integers(0, 99))
def test_steps_stay_within_the_limit_in_the_mean(
    limit: float, cost: float, machine: Machine, seed: int
) -> None:
    """The mean is that of the whole run from its first step on, on any machine."""
    found = throttled([Throttle(limit)], cost, 200, machine, seed)
    assert found.slowdown <= 1.2 * limit + cost / (200 * CYCLE)


@same_examples
@given(LIMITS, st.floats(0.0, 4.0))
@example(limit=0.01, cost=5e-324)
def test_the_background_gets_what_the_limit_leaves(limit: float, cost: float) -> None:
    """Once it is known what it costs; of what costs more than a step, whole steps are few."""
    throttle = Throttle(limit)
    throttled([throttle], cost, 100)
    found = throttled([throttle], cost, 200)
    free = min(limit, ALL * cost)
    least = (0.85 if cost < 1 else 0.45) * free - cost / (200 * CYCLE)
    assert found.slowdown >= least - 1e-12  # a cost below the rounding of a step adds nothing to it


@same_examples
@given(LIMITS, st.floats(0.0, 4.0))
def test_it_does_not_oscillate(limit: float, cost: float) -> None:
    """Once it is known what it costs, runs differ by the step that does not go into all of them."""
    found = throttled([Throttle(limit)], cost, 200)
    assert np.ptp(found.runs[100:]) <= 1


@pytest.mark.parametrize("cost", [0.1, 0.2, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_noise_makes_it_waver_little(cost: float, seed: int) -> None:
    for machine, most in (Machine(noise=0.03), 0.12), (Machine(noise=0.03, phase_seconds=2), 0.3):
        found = throttled([Throttle(0.05)], cost, 200, machine, seed)
        assert np.std(found.runs[20:]) / MOST < most
        assert found.slowdown == pytest.approx(0.045, abs=0.01)


@pytest.mark.parametrize("phase_seconds", [0, 2])
def test_job_without_cost_runs_except_in_measured_steps(phase_seconds: float) -> None:
    found = throttled([Throttle(0.05)], 0.0, 100, Machine(noise=0.03, phase_seconds=phase_seconds))
    assert np.mean(np.array(found.runs[20:]) == MOST) > 0.95
    found = throttled([Throttle(0.05)], 0.0, 40)
    assert set(found.runs[12:]) == {MOST}


@pytest.mark.parametrize(("cost", "limit"), [(0.3, 0.05), (0.6, 0.05), (1.0, 0.05), (1.0, 0.1)])
def test_the_limit_holds_from_the_first_cycle_on(cost: float, limit: float) -> None:
    for cycles in (1, 2, 3, 4, 6, 8, 16):
        assert throttled([Throttle(limit)], cost, cycles).slowdown <= limit


@pytest.mark.parametrize("cost", [5.0, 20.0, 200.0])
def test_job_that_always_costs_too_much_is_paused_nearly_all_the_time(cost: float) -> None:
    for seed in range(3):
        found = throttled([Throttle(0.02)], cost, 1000, Machine(noise=0.03), seed)
        assert found.shares[0] <= 0.005
        # But for what is not believed before it was seen again.
        assert found.slowdown <= 0.02 + 3 * cost / (1000 * CYCLE)


@pytest.mark.parametrize(("early", "late"), [(5.0, 0.0), (0.0, 1.0), (0.5, 0.05)])
def test_throttle_follows_a_changing_cost(early: float, late: float) -> None:
    changes = 100 * CYCLE
    found = throttled([Throttle(0.05)], lambda number: early if number < changes else late, 300)
    always = throttled([Throttle(0.05)], late, 200)
    assert found.runs[-1] == pytest.approx(always.runs[-1], abs=1)
    assert found.slowdown <= 0.055


def test_one_disturbed_step_is_soon_forgotten() -> None:
    throttle = Throttle(0.05)
    throttled([throttle], 0.0, 40)
    while not throttle.runs:
        throttle.record(0.1)
    throttle.record(100.0)
    found = throttled([throttle], 0.0, 20)
    assert found.runs[-1] == MOST


def test_a_machine_that_gets_slower_is_not_the_backgrounds_fault() -> None:
    throttle = Throttle(0.05)
    for index in range(80 * CYCLE):
        throttle.record(0.1 * 1.0005**index)
    assert throttle.duty == 1


@pytest.mark.parametrize("cost", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_wait_for_each_other_share_the_limit(cost: float, seed: int) -> None:
    """Each decides by itself, and no background starves."""
    ranks = [Throttle(0.05) for _ in range(4)]
    found = throttled(ranks, cost, 300, Machine(noise=0.03, phase_seconds=2), seed)
    assert found.slowdown <= 0.055
    assert min(found.shares) > 0.5 * max(found.shares)


def test_ranks_that_start_with_other_limits_keep_the_largest() -> None:
    found = throttled([Throttle(0.02), Throttle(0.1)], 0.5, 300, Machine(noise=0.03))
    assert found.slowdown <= 0.1
    assert 0 < found.shares[0] < found.shares[1]


def test_steps_that_are_not_usual_say_nothing() -> None:
    throttle = Throttle(0.05)
    for _ in range(20 * CYCLE):
        throttle.record(9.0 if throttle.runs else 0.1, is_steady=not throttle.runs)
    assert throttle.slowdown is None
    assert 0 < throttle.share_of_steps < 0.1


def test_report_of_a_run() -> None:
    throttle = Throttle(0.05)
    found = throttled([throttle], 0.25, 100)
    assert throttle.slowdown == pytest.approx(0.25)
    assert throttle.share_of_steps == pytest.approx(found.shares[0])
    assert throttle.duty == found.runs[-1] / MOST


@pytest.mark.parametrize("limit", [0, -1, float("nan"), "5%"])
def test_limit_is_a_share_above_0(limit: float) -> None:
    with pytest.raises(ValueError, match="max_slowdown must be"):
        Throttle(limit)
