"""Steady-state step times of interleaved plans on a machine of changing speed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.autotune.machine import (
    AFTER,
    BEFORE,
    NUM_WORKERS,
    PROFILE,
    Machine,
    moved_records,
    mover,
)
from tf_libra.autotune import random_plans
from tf_libra.autotune.sampling_plans import one_by_one_plan
from tf_libra.autotune.step_times import StepTimes, TimedStep, step_times
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import AllReduceRecord


def _slowed(step: TimedStep, pace: float) -> TimedStep:
    """Returns the step with all its times scaled by a factor."""
    moved = mover(step.called_ns[0], pace)
    called_ns = (step.called_ns[0], moved(step.called_ns[1]))
    return TimedStep(step.plan, called_ns, moved_records(step.records, moved))


def _round(machine: Machine, plans: Sequence[Plan], pace: float) -> list[TimedStep]:
    steps = []
    for plan in plans:
        seen = machine.run(plan)
        steps.append(_slowed(TimedStep(plan, seen.called_ns, seen.records), pace))
    return steps


PLANS = random_plans(PROFILE, (1, 2, 4), NUM_WORKERS, 5)


def test_slow_round_does_not_affect_steady_state_times() -> None:
    machine = Machine()
    even = step_times([step for _ in range(3) for step in _round(machine, PLANS, 1.0)])
    uneven = step_times(
        [step for pace in (1.0, 1.4, 1.0) for step in _round(Machine(), PLANS, pace)]
    )
    for expected, other in zip(even, uneven, strict=True):
        assert other.seconds == pytest.approx(expected.seconds, rel=1e-6)
        np.testing.assert_allclose(other.spans, expected.spans, rtol=1e-6)


def test_slow_half_round_does_not_separate_plans() -> None:
    """The machine becomes slower within the first round and stays slow."""
    machine = Machine()
    first = _round(machine, PLANS[:2], 1.0) + _round(machine, PLANS[2:], 1.3)
    found = step_times([*first, *_round(machine, PLANS, 1.3), *_round(machine, PLANS, 1.3)])
    plain = step_times(_round(machine, PLANS, 1.3))
    for expected, other in zip(found, plain, strict=True):
        assert expected.seconds == pytest.approx(other.seconds, rel=1e-6)


def test_slowdown_within_rounds_shows_in_first_readiness() -> None:
    """Gives some plans two slow rounds of three by chance, and the others none."""
    plans = random_plans(PROFILE, (1, 2, 4), NUM_WORKERS, 10)
    unlucky, others = plans[:5], plans[5:]
    machine = Machine()
    steps = [
        *_round(machine, unlucky, 1.38),
        *_round(machine, others, 1.0),
        *_round(machine, others, 1.0),
        *_round(machine, unlucky, 1.38),
        *_round(machine, plans, 1.0),
    ]

    even = {
        step_time.plan.fingerprint: step_time.seconds
        for step_time in step_times(_round(Machine(), plans, 1.0))
    }

    def spread(found: Sequence[StepTimes]) -> float:
        return float(np.ptp([times.seconds / even[times.plan.fingerprint] for times in found]))

    assert spread(step_times(steps)) < 1e-6
    # Without those stamps the unlucky ones seem to be slow.
    assert spread(step_times([_never_ready(step) for step in steps])) > 0.3


def _never_ready(step: TimedStep) -> TimedStep:
    """Returns the step with its first group ready at the step's start."""
    first, *others = step.records
    first = replace(first, enqueued_ns=step.called_ns[0])
    return replace(step, records=(first, *others))


def _late(step: TimedStep) -> TimedStep:
    """Returns the step with its first group ready after 1.5 times as long."""
    first, *others = step.records
    ready_ns = step.called_ns[0] + round(1.5 * (first.enqueued_ns - step.called_ns[0]))
    return replace(step, records=(replace(first, enqueued_ns=ready_ns), *others))


def test_late_first_group_of_a_plan_is_no_slowdown() -> None:
    """Other computation may delay the first gradients to 1.5 times the profile's time."""
    steps = [step for _ in range(3) for step in _round(Machine(), PLANS, 1.0)]
    shifted = [_late(step) if step.plan in (PLANS[0], PLANS[3]) else step for step in steps]
    for step_time, other in zip(step_times(shifted), step_times(steps), strict=True):
        assert step_time.seconds == other.seconds


def test_late_gradients_of_a_step_that_takes_as_long_are_no_slowdown() -> None:
    """The network decides how long the step takes, and slower computation does not."""
    steps = [step for _ in range(2) for step in _round(Machine(), PLANS, 1.0)]
    shifted = [_late(step) if index in range(3, 8) else step for index, step in enumerate(steps)]
    for step_time, other in zip(step_times(shifted), step_times(steps), strict=True):
        assert step_time.seconds == other.seconds
        assert step_time.spans[-1, 1] == other.spans[-1, 1]


def test_empty_first_group_gives_no_slowdown() -> None:
    machine = Machine(BackwardProfile.from_arrays([0, 4_000_000], [0.01, 0.01]))
    plan = one_by_one_plan(machine.specs(), 1, NUM_WORKERS)
    seen = machine.run(plan)
    # As it is recorded: what has no bytes is never launched.
    steps = [TimedStep(plan, seen.called_ns, seen.records[1:])] * 3
    [times] = step_times(steps)
    assert times.seconds == pytest.approx(seen.seconds)


def test_single_late_step_is_no_slowdown() -> None:
    steps = [step for _ in range(3) for step in _round(Machine(), PLANS, 1.0)]
    late = [_slowed(step, 1.5) if index == 7 else step for index, step in enumerate(steps)]
    for step_time, other in zip(step_times(late), step_times(steps), strict=True):
        assert step_time.seconds == pytest.approx(other.seconds, rel=1e-6)


def test_incomplete_rounds_and_few_plans_are_not_corrected() -> None:
    machine = Machine()
    cut = step_times([*_round(machine, PLANS, 1.0), *_round(machine, PLANS[:1], 1.5)])
    assert [times.num_steps for times in cut] == [2, 1, 1, 1, 1]
    [alone] = step_times([step for p in (1.0, 1.2) for step in _round(machine, PLANS[:1], p)])
    usual = step_times(_round(machine, PLANS[:1], 1.1))[0].seconds
    assert alone.seconds == pytest.approx(usual, rel=1e-6)


def test_spans_lie_within_the_step() -> None:
    for step_time in step_times(_round(Machine(), PLANS, 1.0)):
        assert np.all(step_time.spans[:, 0] >= BEFORE - 1e-9)
        assert step_time.spans[-1, 1] <= step_time.seconds - AFTER + 1e-9


def test_step_times_without_steps_are_empty() -> None:
    assert step_times([]) == []


def test_sending_begins_when_the_last_rank_arrives() -> None:
    """Another rank is late for every all-reduce of the second of three steps."""
    machine, plan, late_ns = Machine(), PLANS[0], 5_000_000

    def late(record: AllReduceRecord) -> AllReduceRecord:
        return replace(
            record,
            first_byte_ns=record.first_byte_ns + late_ns,
            finished_ns=record.finished_ns + late_ns,
        )

    steps = []
    for number in range(3):
        seen = machine.run(plan)
        records = [late(record) for record in seen.records] if number == 1 else seen.records
        steps.append(TimedStep(plan, seen.called_ns, tuple(records)))
    for chosen in (steps[:1], steps[1:2]):
        # The shortest wait for a first byte shows what the connection takes.
        found = step_times([*steps, *chosen])[0]
        spans = step_times(steps[:1])[0].spans
        assert found.sending == pytest.approx(spans[:, 1] - spans[:, 0], abs=1e-6)
