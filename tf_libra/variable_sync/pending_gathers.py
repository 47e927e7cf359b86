"""Weights that are still gathered between two calls of a training function.

The engine keeps these variables locked, so that everything that reads or writes them waits, in any
thread. The observer of this module waits before, also for the end of a call, inside of which they
are updated in part, and turns the loss of a rank into the job's error.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from tf_libra.backends import engine as engine_lib
from tf_libra.backends import sharded_steps
from tf_libra.coordination import control_plane, current_job
from tf_libra.coordination.signal_handling import step_interrupts
from tf_libra.internal import formatting
from tf_libra.internal.process_state import STATE
from tf_libra.variable_sync.read_service import RESCUE_SECONDS, SIGNAL_SECONDS
from tf_libra.variable_sync.variable_access import variable_access

# The engine ends a gather that makes no progress for `timeout_seconds`, and knows why.
_ENGINE_FIRST = 10
# Longest wait before this process forks.
_LAST_SECONDS = 30.0


class PendingGathers:
    """The gathers of this process that go on after their step; an `AccessObserver`."""

    def __init__(self) -> None:
        """Observes nothing yet."""
        self._observed: frozenset[int] = frozenset()
        self._seconds = 0.0
        self._turns = threading.Condition()  # guards the next
        self._is_computing = False  # a step is running
        os.register_at_fork(before=self.finish_quietly)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Wraps a call that may update weights in part; other threads wait for its end."""
        with self._turns:
            self._is_computing = True
        try:
            yield
        finally:
            with self._turns:
                self._is_computing = False
                self._turns.notify_all()

    def begin_step(self, weights: frozenset[int], timeout_seconds: float) -> None:
        """Observes the weights, by key, that the next step gathers.

        Args:
            weights: keys of the variables.
            timeout_seconds: longest wait for a gather.

        Raises:
            EngineError: a gather of the weights of another function has failed.
        """
        if weights != self._observed:
            self.finish()
            self.forget()
            self._observed = weights
            self._seconds = _ENGINE_FIRST * timeout_seconds
            variable_access().observe(weights, self)

    def finish(self, seconds: float | None = None) -> None:
        """Waits until all weights are whole.

        Args:
            seconds: longest wait for a gather; None for that of the step.

        Raises:
            EngineError: a gather has failed, as a rank is gone.
        """
        if not self._observed:
            return
        try:
            engine_lib.await_gathers(self._seconds if seconds is None else seconds)
        except control_plane.EngineError:
            self.forget()
            raise

    def finish_quietly(self, seconds: float = _LAST_SECONDS) -> None:
        """Waits a while until no weight is gathered, whole or not; raises nothing."""
        with contextlib.suppress(control_plane.EngineError):
            self.finish(seconds)

    def undo(self, is_exit: bool) -> None:
        """Undoes a step that has failed on this rank, when it has ended here.

        What this rank still sends of a step that has made all its updates comes first: such a step
        is complete on all ranks, or on none.

        Args:
            is_exit: whether `exit` has ended it. After that, or a signal, the launcher does not
                wait for long.
        """
        is_exit = is_exit or step_interrupts().came is not None
        sharded_steps.await_steps(SIGNAL_SECONDS if is_exit else RESCUE_SECONDS)
        sharded_steps.undo_steps()
        self.forget()

    def complete(self) -> bool:
        """Waits for the last step; returns whether it is complete. If it has failed, undoes it."""
        is_complete = sharded_steps.await_steps(self._seconds)
        if not is_complete:
            self.fail()
        return is_complete

    def fail(self) -> None:
        """Undoes steps that are not complete, as they have failed on another rank.

        If a step is running, it fails, too, and its end undoes them.
        """
        with self._turns:
            if self._is_computing:
                sharded_steps.fail_steps()
            else:
                sharded_steps.undo_steps()

    def forget(self) -> None:
        """Ends the observation: weights that are lost can be assigned."""
        variable_access().forget(self._observed)
        self._observed = frozenset()

    def on_access(self, handles: Sequence[Any]) -> None:
        """See `AccessObserver`.

        Threads that Python has not started do not wait for a step, which may wait for them.
        """
        is_of_tensorflow = isinstance(threading.current_thread(), threading._DummyThread)
        if not is_of_tensorflow:
            self._await_end()
        try:
            step_interrupts().during(self.finish)
        except control_plane.EngineError as error:
            self.fail()
            lost = control_plane.lost(error)
            raise error if lost is None else current_job.get_job().lost(lost) from error

    def _await_end(self) -> None:
        with self._turns:
            if self._turns.wait_for(lambda: not self._is_computing, self._seconds):
                return
        raise control_plane.EngineError(
            f"a step has not ended within {formatting.time(self._seconds)}, and another thread"
            " accesses its weights"
        )


@STATE.value(on_reset=PendingGathers.forget, survives_fork=False)
def pending_gathers() -> PendingGathers:
    """Returns the gathers of this process."""
    return PendingGathers()
