"""Turns of steps and reads of one rank."""

import threading
from collections.abc import Callable
from unittest import mock

import pytest

from tf_libra.coordination.control_plane import EngineError
from tf_libra.variable_sync import read_service
from tf_libra.variable_sync.read_service import EndedSteps
from tf_libra.variable_sync.step_turns import InStepError, StepTurns


def test_steps_and_reads_take_turns() -> None:
    turns = StepTurns("slots of step", 60.0)
    turns.begin()
    with pytest.raises(InStepError, match="inside of their step 1"), turns.reading(waits=False):
        pass
    events = []

    def read() -> None:
        with turns.reading(waits=True):
            events.append(turns.number)
            is_reading.set()
            may_end.wait()
            events.append("read")

    is_reading, may_end = threading.Event(), threading.Event()
    thread = threading.Thread(target=read)
    thread.start()
    turns.leave(has_ended=True)
    is_reading.wait()
    threading.Timer(0.01, may_end.set).start()
    turns.begin()
    events.append("step")
    turns.leave(has_ended=False)  # it has raised an error
    thread.join()
    assert events == [1, "read", "step"]
    assert turns.number == 1


def test_read_that_may_not_wait_for_a_step_waits_for_other_uses() -> None:
    turns = StepTurns("slots of step", 0.0)
    turns.begin(is_step=False)
    with pytest.raises(EngineError, match="has waited"), turns.reading(waits=False):
        pass
    turns.leave(has_ended=False)
    with turns.reading(waits=False):
        pass
    turns.begin()
    with pytest.raises(InStepError), turns.reading(waits=False):
        pass


def test_waits_for_a_turn_have_a_deadline() -> None:
    turns = StepTurns("slots of step", 0.0)
    with turns.reading(waits=True), pytest.raises(EngineError, match="for a thread that reads"):
        turns.begin()
    turns.begin()
    waits = (lambda: turns.reading(waits=True).__enter__(), lambda: turns.await_end(1))
    for wait in (*waits, lambda: turns.await_reader(1)):
        with pytest.raises(EngineError, match="for the end of a step of its own: slots of step"):
            wait()


@pytest.mark.parametrize("make", [EndedSteps, lambda: StepTurns("slots of step", 60.0)])
def test_waits_end_when_the_ranks_leave_the_job(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], EndedSteps]
) -> None:
    """Another rank is gone, and its step never ends; ranks that are new have ended none."""
    monkeypatch.setattr(read_service.engine_lib, "running", mock.Mock)
    steps = make()
    steps.end()
    errors: list[EngineError] = []
    is_waiting = threading.Event()
    wait = steps._ended.wait

    def waiting(timeout: float | None = None) -> bool:
        is_waiting.set()  # `close` cannot notify before the wait, which releases the lock
        return wait(timeout)

    monkeypatch.setattr(steps._ended, "wait", waiting)

    def await_end() -> None:
        try:
            steps.await_end(2)
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=await_end, daemon=True)
    thread.start()
    assert is_waiting.wait(60.0)
    steps.close()
    thread.join(60.0)
    assert len(errors) == 1
    steps.await_reader(0)  # as a rank that begins with the next job asks
    assert steps.modulus == 0


def test_reader_of_another_step_gets_no_value() -> None:
    turns = StepTurns("slots of step", 60.0)
    turns.await_reader(0)
    with pytest.raises(KeyError):
        turns.await_reader(2)
