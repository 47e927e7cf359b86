"""Turns of steps and reads of one rank."""

import threading

import pytest

from tf_libra.coordination.control_plane import EngineError
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


def test_waits_end_when_the_ranks_leave_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = StepTurns("slots of step", 60.0)
    turns.begin()
    turns.leave(has_ended=True)
    turns.begin()
    errors: list[str] = []
    is_waiting = threading.Event()
    wait = turns._ended.wait

    def waiting(timeout: float | None = None) -> bool:
        is_waiting.set()  # `close` cannot notify before the wait, which releases the lock
        return wait(timeout)

    monkeypatch.setattr(turns._ended, "wait", waiting)

    def await_end() -> None:
        try:
            turns.await_end(2)
        except EngineError as error:
            errors.append(str(error))

    thread = threading.Thread(target=await_end)
    thread.start()
    is_waiting.wait()
    turns.leave(has_ended=False)  # another rank is gone
    turns.close()
    thread.join()
    assert errors == ["slots of step: this rank has left the job"]
    turns.await_reader(0)  # as a rank that begins with the next job asks
    turns.begin()


def test_reader_of_another_step_gets_no_value() -> None:
    turns = StepTurns("slots of step", 60.0)
    turns.await_reader(0)
    with pytest.raises(KeyError):
        turns.await_reader(2)
