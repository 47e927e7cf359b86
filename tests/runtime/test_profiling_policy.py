"""The choice of the steps under a plan that are traced."""

import pytest

from tf_libra.runtime.profiling_policy import CHECK_SHARE, CHECKED_STEPS, ProfilingPolicy

STEP, TRACED = 0.01, 0.03


def traced_at(num_steps: int, is_written: bool) -> tuple[list[int], float]:
    """Numbers of the steps that are traced, and the share of time that tracing has taken."""
    now = 0.0
    checking = ProfilingPolicy(clock=lambda: now)
    found = []
    for number in range(num_steps):
        traced = checking.wants(number, is_written)
        seconds = TRACED if traced else STEP
        now += seconds
        checking.took(seconds, usual=number > 0 and not traced, traced=traced)
        if traced:
            found.append(number)
    return found, len(found) * (TRACED - STEP) / now


def test_first_steps_are_traced_but_for_the_one_that_instantiates_the_plan() -> None:
    assert traced_at(10_000, is_written=False)[0] == list(range(1, 1 + CHECKED_STEPS))


@pytest.mark.parametrize("num_steps", [10_000, 100_000])
def test_later_ones_where_something_is_written_cost_little_and_become_rare(num_steps: int) -> None:
    found, share = traced_at(num_steps, is_written=True)
    assert found[:CHECKED_STEPS] == list(range(1, 1 + CHECKED_STEPS))
    assert CHECKED_STEPS < len(found) < 100
    assert share < CHECK_SHARE
    gaps = [b - a for a, b in zip(found[CHECKED_STEPS:-1], found[CHECKED_STEPS + 1 :], strict=True)]
    assert gaps[-1] > gaps[0]
