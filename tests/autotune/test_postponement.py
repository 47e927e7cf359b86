"""Trials postponed by profiler sessions of the script."""

from dataclasses import replace

import pytest

from tests.autotune.machine import NUM_WORKERS, Machine
from tf_libra import strategies
from tf_libra.autotune import (
    Budget,
    Postponed,
    Postponement,
    Trial,
    Tuner,
    TuningResult,
    postpone_trials,
    tune,
)

REASON = "another profiler session is active"
BUDGET = Budget(max_steps=60, max_seconds=1000.0)


class Script:
    """A script that profiles some of its steps, on a simulated machine."""

    def __init__(self, profiled: range, interrupted: range = range(0), step_seconds: float = 0.05):
        self.machine = Machine(step_seconds=step_seconds)
        self.profiled, self.interrupted = profiled, interrupted
        self.tried: list[Trial] = []
        self.postponed: list[int] = []
        self.lines: list[str] = []

    def run(self, budget: Budget = BUDGET) -> TuningResult:
        step = 1
        machine = self.machine

        def make(pause: Postponement) -> Tuner:
            return tune(
                machine.specs(),
                strategies.Libra(threads=(1, 2, 4)),
                NUM_WORKERS,
                budget,
                leaves_records=True,
                clock=pause.clock,
                should_stop=lambda: pause.is_spent,
            )

        pause = Postponement(budget, lambda: machine.seconds)
        in_use = lambda: REASON if step in self.profiled else ""  # noqa: E731
        tuning = postpone_trials(make, pause, in_use, self.lines.append)
        observation = None
        while True:
            try:
                what = tuning.send(observation)
            except StopIteration as finished:
                return finished.value
            observation = None
            if isinstance(what, Postponed):
                self.postponed.append(step)
                machine.seconds += machine.step_seconds
            else:
                observation = machine.run(what.plan)
                if step in self.interrupted:
                    observation = replace(
                        observation, production=None, problem=REASON, is_interrupted=True
                    )
                else:
                    self.tried.append(what)
            step += 1


@pytest.fixture(scope="module")
def undisturbed() -> Script:
    script = Script(range(0))
    assert script.run().is_complete
    return script


@pytest.mark.parametrize(
    "profiled", [range(1, 4), range(2, 12), range(30, 55), range(2, 61)], ids=str
)
def test_finished_profiler_session_costs_no_budget(profiled: range, undisturbed: Script) -> None:
    script = Script(profiled)
    found = script.run()
    assert found.is_complete and found.profile is not None
    assert script.tried == undisturbed.tried
    assert script.postponed == list(profiled)
    assert [REASON in line for line in script.lines] == [True, False]
    assert str(len(profiled)) in script.lines[1]


@pytest.mark.parametrize("interrupted", [range(3, 4), range(9, 14), range(40, 41)], ids=str)
def test_interrupted_trial_is_repeated(interrupted: range, undisturbed: Script) -> None:
    script = Script(range(0), interrupted)
    found = script.run()
    assert found.is_complete
    assert script.tried == undisturbed.tried


@pytest.mark.parametrize("begin", [1, 2, 20, 30])
def test_endless_profiler_session_ends_tuning_by_steps(begin: int) -> None:
    script = Script(range(begin, 10**6))
    found = script.run()
    assert script.postponed == list(range(begin, begin + BUDGET.max_steps))
    assert len(script.tried) == begin - 1
    assert not found.is_complete
    for notes in (found.notes, found.plan.notes):
        (note,) = [note for note in notes if REASON in note]
        assert "60 steps" in note and "\n" not in note
    assert (found.profile is None) == (begin < 20)


def test_endless_profiler_session_ends_tuning_by_seconds() -> None:
    script = Script(range(2, 10**6), step_seconds=3.0)
    script.run(Budget(max_steps=60, max_seconds=10.0, min_steps=5))
    assert script.postponed == [2, 3, 4, 5]


def test_repeated_interruptions_end_tuning() -> None:
    script = Script(range(0), range(1, 10**6))
    found = script.run(Budget(max_steps=7, max_seconds=1000.0))
    assert script.tried == []
    assert any(REASON in note and "7 steps" in note for note in found.notes)


def test_postponed_steps_take_no_time_of_tuning() -> None:
    seconds = 5.0
    pause = Postponement(BUDGET, lambda: seconds)
    step = pause.run_step(Postponed(), REASON)
    next(step)
    seconds += 3.0
    with pytest.raises(StopIteration):
        step.send(None)
    assert pause.clock() == 5.0
    seconds += 1.0
    assert pause.clock() == 6.0
