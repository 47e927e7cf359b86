"""The profile of a traced step, and its times while another program sets the clock."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from tests.backends.alone import alone
from tests.runtime.alone import INPUTS, NAMES, TWO, step
from tf_libra.backends.engine import Engine
from tf_libra.runtime.plan_activation import PlanActivator
from tf_libra.runtime.step_profiler import (
    CHECK_SHARE,
    CHECKED_STEPS,
    ProfilingPolicy,
    lie_within,
    timed,
)
from tf_libra.specs.telemetry import AllReduceRecord

HOUR_NS = 3600 * 10**9
CALLED_NS = (10**18, 10**18 + 50_000_000)


def test_call_lasts_as_long_as_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns()

    def set_back() -> str:
        monkeypatch.setattr(time, "time_ns", lambda: now_ns - HOUR_NS)
        return "result"

    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    result, (start_ns, stop_ns) = timed(set_back)
    assert result == "result"
    assert start_ns == now_ns
    assert 0 <= stop_ns - start_ns < HOUR_NS


@pytest.mark.parametrize(
    ("shift_ns", "within"),
    [(0, True), (1_000_000, True), (-HOUR_NS, False), (HOUR_NS, False), (40_000_000, False)],
)
def test_step_in_which_the_clock_was_set_is_detected(shift_ns: int, within: bool) -> None:
    start_ns = CALLED_NS[0] + shift_ns
    record = AllReduceRecord(
        step=1,
        sequence=0,
        plan="plan",
        group=0,
        num_threads=1,
        num_bytes=4,
        enqueued_ns=start_ns,
        started_ns=start_ns + 1_000_000,
        first_byte_ns=start_ns + 2_000_000,
        finished_ns=start_ns + 45_000_000,
        tensor_names=("w",),
    )
    assert lie_within([record], CALLED_NS) is within
    assert lie_within([], CALLED_NS)


@pytest.fixture
def engine() -> Iterator[Engine]:
    running = alone(num_lanes=2)
    yield running
    running.close()


def test_traced_step_says_when_gradients_came_and_what_was_reduced(
    engine: Engine, activator: PlanActivator, tmp_path: Path
) -> None:
    train = step()
    activator.activate(TWO)
    activator.call(1, lambda: train(INPUTS), traced=True)
    for number in (2, 3):
        engine.set_step(number)
        _, seen = activator.call(number, lambda: train(INPUTS), traced=True)
        assert seen is not None and seen.production is not None, seen
        assert seen.problem == ""
        assert seen.production.names == NAMES
        came_ns = seen.production.produced_ns
        assert seen.called_ns[0] <= came_ns.min() <= came_ns.max() <= seen.called_ns[1]
        assert [(r.step, r.group, r.num_threads) for r in seen.records] == [
            (number, 0, 1),
            (number, 1, 2),
        ]
    engine.set_step(4)
    tf.profiler.experimental.start(str(tmp_path))
    try:
        _, seen = activator.call(4, lambda: train(INPUTS), traced=True)
    finally:
        tf.profiler.experimental.stop()
    assert seen is not None and seen.production is None
    assert "another profiler session is active" in seen.problem
    assert len(seen.records) == 2


def test_first_call_that_fails_at_the_end_of_data_provides_the_graph(
    engine: Engine, activator: PlanActivator, tmp_path: Path
) -> None:
    train = step()

    def at_the_end() -> None:
        train(INPUTS)
        raise tf.errors.OutOfRangeError(None, None, "end of sequence")

    activator.activate(TWO)
    with pytest.raises(tf.errors.OutOfRangeError):
        activator.call(1, at_the_end, traced=True)
    engine.set_step(2)
    assert activator.call(2, lambda: train(INPUTS), traced=True)[1] is None  # the first that counts
    engine.set_step(3)
    _, seen = activator.call(3, lambda: train(INPUTS), traced=True)
    assert seen is not None and seen.production is not None, seen


STEP, TRACED = 0.01, 0.03


def traced_at(num_steps: int, is_written: bool) -> tuple[list[int], float]:
    """Numbers of the steps that are traced, and the share of time that tracing has taken."""
    now = 0.0
    policy = ProfilingPolicy(clock=lambda: now)
    found = []
    for number in range(num_steps):
        traced = policy.should_trace(number, is_written)
        seconds = TRACED if traced else STEP
        now += seconds
        policy.record(seconds, is_steady=number > 0 and not traced, traced=traced)
        if traced:
            found.append(number)
    return found, len(found) * (TRACED - STEP) / now


def test_first_steps_after_the_instantiating_step_are_traced() -> None:
    assert traced_at(10_000, is_written=False)[0] == list(range(1, 1 + CHECKED_STEPS))


@pytest.mark.parametrize("num_steps", [10_000, 100_000])
def test_recorded_later_steps_cost_little_and_become_rare(num_steps: int) -> None:
    found, share = traced_at(num_steps, is_written=True)
    assert found[:CHECKED_STEPS] == list(range(1, 1 + CHECKED_STEPS))
    assert CHECKED_STEPS < len(found) < 100
    assert share < CHECK_SHARE
    gaps = [b - a for a, b in zip(found[CHECKED_STEPS:-1], found[CHECKED_STEPS + 1 :], strict=True)]
    assert gaps[-1] > gaps[0]
