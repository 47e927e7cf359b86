"""Waits for other ranks, and a background that is held to them."""

import itertools
import logging
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from tf_libra.background_jobs.idle_gaps import IdleGaps, SchedulingMode
from tf_libra.background_jobs.manager import Background
from tf_libra.background_jobs.throttle import CYCLE, NUM_BASELINE_STEPS, Throttle

MOST = CYCLE - NUM_BASELINE_STEPS
LIMIT = 0.05


def test_a_wait_is_known_by_the_last_one_for_the_same() -> None:
    gaps = IdleGaps()
    assert not gaps.is_long("x")
    for what, seconds in ("x", 0.03), ("y", 1e-5), ("z", 0.01):
        gaps.record(what, seconds)
    gaps.record_step(0.1)
    assert gaps.share == pytest.approx(0.4)
    assert [gaps.is_long(tensor) for tensor in "xyz"] == [True, False, True]
    gaps.record("x", 1e-5)
    gaps.record_step(0.1)
    assert gaps.share == 0 and not gaps.is_long("x")


def lived(
    in_gaps: float, overlapped: float, share: float, cycles: int, seed: int = 0
) -> tuple[Throttle, list[tuple[bool, int]]]:
    """Runs steps that lose these shares of a step to the job in gaps, or in all of the step.

    Returns:
        The throttle; and by cycle whether it kept to gaps, and how many steps it ran.
    """
    random = np.random.default_rng(seed)
    throttle = Throttle(LIMIT)
    manner = SchedulingMode(throttle)
    found = []
    for _ in range(cycles):
        ran = 0
        for _ in range(CYCLE):
            ran += throttle.runs
            cost = (in_gaps if manner.in_gaps else overlapped) if throttle.runs else 0.0
            throttle.record(0.1 * (1 + cost) * random.normal(1, 0.01))
            if throttle.is_planned:
                manner.planned(share)
        found.append((manner.in_gaps, ran))
    return throttle, found


@pytest.mark.parametrize("seed", range(3))
def test_costly_job_runs_only_in_gaps(seed: int) -> None:
    throttle, found = lived(in_gaps=0.01, overlapped=0.8, share=0.4, cycles=100, seed=seed)
    assert found[0][0]
    assert all(in_gaps for in_gaps, _ in found[-40:])
    assert np.mean([ran for _, ran in found[-40:]]) > 0.95 * MOST
    trials = sum(before[0] != after[0] for before, after in itertools.pairwise(found))
    assert trials <= 2  # concurrent with steps once, and back for good
    _, lost = throttle.evaluated
    assert lost / throttle.num_steps <= 1.1 * LIMIT


def test_free_job_overlaps_whole_steps() -> None:
    _, found = lived(in_gaps=0.0, overlapped=0.0, share=0.4, cycles=60)
    assert not any(in_gaps for in_gaps, _ in found[-20:])
    assert np.mean([ran for _, ran in found[-20:]]) > 0.95 * MOST


def test_gaps_that_cost_too_much_are_paced_as_well() -> None:
    throttle, found = lived(in_gaps=0.3, overlapped=0.9, share=0.4, cycles=200)
    assert all(in_gaps for in_gaps, _ in found)
    assert 0 < np.mean([ran for _, ran in found[-100:]]) < 0.3 * MOST
    _, lost = throttle.evaluated
    assert lost / throttle.num_steps <= 1.1 * LIMIT


def test_without_gaps_the_job_overlaps_steps() -> None:
    _, found = lived(in_gaps=0.0, overlapped=0.2, share=0.05, cycles=20)
    assert not any(in_gaps for in_gaps, _ in found)


@pytest.fixture
def job() -> Iterator[Background]:
    command = [sys.executable, "-c", "while True: pass"]
    job = Background(command, 0.5, logging.getLogger("tf_libra.test"))
    yield job
    job.end()


def test_process_goes_on_in_long_gaps_alone(
    job: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between them, and in short ones, it is stopped; in steps that are to be alone, throughout."""
    now = 0.0
    clock = SimpleNamespace(perf_counter=lambda: now, monotonic=time.monotonic)
    monkeypatch.setattr("tf_libra.background_jobs.manager.time", clock)
    ran_in_gaps = 0
    for step in range(4 * CYCLE):
        is_alone = step % CYCLE < NUM_BASELINE_STEPS
        with job.around_step(lambda: True):
            assert not job.runs
            with job.around_wait("short"):
                assert not job.runs
            with job.around_wait("long"):
                ran_in_gaps += job.runs
                assert not (is_alone and job.runs)
                now += 0.005
            assert not job.runs
    assert ran_in_gaps > 0
    assert "in the gaps of" in job.describe()
