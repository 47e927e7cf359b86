"""Turns of the steps of this rank, and of reads of its threads from other ranks."""

import contextlib
from collections.abc import Callable, Iterator

from tf_libra.coordination import control_plane
from tf_libra.internal import formatting, native
from tf_libra.variable_sync.read_service import EndedSteps


class InStepError(RuntimeError):
    """Error of a read of a slot inside of the step that updates the slot."""


class StepTurns(EndedSteps):
    """Steps of this rank, and reads by its threads, which take turns."""

    def __init__(self, function: str, seconds: float) -> None:
        """Begins before the first step.

        Args:
            function: identity of what is read, for messages.
            seconds: longest wait for a turn.
        """
        super().__init__()
        self._function, self._seconds = function, seconds
        self._is_computing = self._is_step = self._is_reading = False

    def begin(self, is_step: bool = True) -> None:
        """Begins a step, or another use of the slots by all ranks, when no thread reads."""
        with self._ended:
            self._await(lambda: not self._is_reading, "a thread that reads")
            self._is_computing, self._is_step = True, is_step

    def leave(self, has_ended: bool) -> None:
        """Ends what `begin` has begun, if anything; `has_ended` if it was a step, without error."""
        with self._ended:
            self.number += has_ended and self._is_computing
            self._is_computing = False
            self._ended.notify_all()

    @property
    def is_computing(self) -> bool:
        """True between `begin` and `leave`."""
        return self._is_computing

    @contextlib.contextmanager
    def reading(self, waits: bool) -> Iterator[None]:
        """Wraps a read between steps.

        Args:
            waits: whether to wait for the end of a step; else `InStepError` is raised. Another use,
                which waits for no thread of TensorFlow, is waited for in any case.
        """
        with self._ended:
            if self._is_computing and self._is_step and not waits:
                raise InStepError(
                    f"{self._function} were read inside of their step {self.number + 1}: read them"
                    " between steps, or by ops of the step"
                )
            self._await(lambda: not (self._is_computing or self._is_reading), "the end of a step")
            self._is_reading = True
        try:
            yield
        finally:
            with self._ended:
                self._is_reading = False
                self._ended.notify_all()

    def await_reader(self, step: int | None) -> None:
        """See `EndedSteps`."""
        super().await_reader(step)
        if step != self.modulus:
            raise KeyError(f"values after step {step} of each {self.MODULUS}")

    def _await(self, is_turn: Callable[[], bool], what: str) -> None:
        job = self._job
        has_come = self._ended.wait_for(lambda: self._job != job or is_turn(), self._seconds)
        self._check_job(job)
        if not has_come:
            place = native.engine_place()
            who = "this rank" if place is None else f"rank {place.rank}"
            raise control_plane.EngineError(
                f"{who} has waited {formatting.time(self._seconds)} for {what} of its own:"
                f" {self._function}, step {self.number + 1}"
            )
