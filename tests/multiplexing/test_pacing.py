"""How much a background may run beside a simulated foreground."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_libra.multiplexing.pacing import CYCLE, Pacing


def run(
    pacing: Pacing, slowdown: float, num_cycles: int, noise: float = 0.0, seed: int = 0
) -> tuple[float, list[float]]:
    """Mean slowdown of all steps, and the duty of every cycle."""
    random = np.random.default_rng(seed)
    total, duties = 0.0, []
    for _ in range(num_cycles * CYCLE):
        seconds = 0.1 * (1 + slowdown * pacing.runs) * (1 + noise * random.standard_normal())
        total += slowdown * pacing.runs
        pacing.took(seconds)
        duties.append(pacing.duty)
    return total / (num_cycles * CYCLE), duties[CYCLE - 1 :: CYCLE]


@settings(max_examples=40)
@given(st.floats(0.0, 3.0), st.floats(0.01, 0.5))
def test_foreground_stays_within_the_limit(slowdown: float, limit: float) -> None:
    pacing = Pacing(limit)
    run(pacing, slowdown, 10)
    mean, _ = run(pacing, slowdown, 40)
    # To one step of a cycle.
    assert mean <= limit * 1.02 + slowdown / CYCLE


@settings(max_examples=40)
@given(st.floats(0.001, 0.5), st.floats(0.02, 0.3))
def test_what_the_limit_leaves_is_used(slowdown: float, limit: float) -> None:
    pacing = Pacing(limit)
    run(pacing, slowdown, 10)
    mean, duties = run(pacing, slowdown, 10)
    assert duties[-1] == pytest.approx(1, abs=0.01) or mean >= limit - 2 * slowdown / CYCLE


def test_what_costs_nothing_always_runs_but_for_the_steps_that_say_so() -> None:
    pacing = Pacing(0.05)
    run(pacing, 0.0, 20)
    assert pacing.duty == 1
    assert pacing.share_of_steps == 0.75


@pytest.mark.parametrize("seed", range(5))
def test_noise_makes_it_waver_little(seed: int) -> None:
    pacing = Pacing(0.05)
    run(pacing, 0.2, 10, noise=0.03, seed=seed)
    mean, duties = run(pacing, 0.2, 60, noise=0.03, seed=seed + 100)
    assert mean <= 0.06
    assert np.std(duties) < 0.12


def test_unbearable_background_is_paused_and_tried_now_and_then() -> None:
    pacing = Pacing(0.01)
    run(pacing, 5.0, 20)
    mean, duties = run(pacing, 5.0, 80)
    assert sum(duty > 0 for duty in duties) <= 20
    assert mean <= 0.1
    # When it has become bearable, it is found out.
    _, duties = run(pacing, 0.0, 40)
    assert duties[-1] > 0.95


def test_machine_that_gets_slower_is_not_the_backgrounds_fault() -> None:
    pacing = Pacing(0.05)
    for index in range(40 * CYCLE):
        pacing.took(0.1 * 1.0005**index)
    assert pacing.duty > 0.9


def test_steps_that_are_not_usual_say_nothing() -> None:
    pacing = Pacing(0.05)
    for _ in range(10 * CYCLE):
        pacing.took(9.0 if pacing.runs else 0.1, usual=not pacing.runs)
    assert pacing.slowdown is None
    assert pacing.duty == 1


@pytest.mark.parametrize("limit", [0, -1, float("nan"), "5%"])
def test_limit_is_a_share_above_0(limit: float) -> None:
    with pytest.raises(ValueError, match="max_slowdown must be"):
        Pacing(limit)
