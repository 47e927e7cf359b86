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
from tf_libra.coordination import control_plane, current_job
from tf_libra.coordination.signal_handling import step_interrupts
from tf_libra.internal import formatting
from tf_libra.internal.process_state import STATE
from tf_libra.variable_sync.variable_access import variable_access

# The engine ends a gather that makes no progress for `timeout_seconds`, and knows why.
_ENGINE_FIRST = 10
# Longest wait before this process forks or aborts.
_LAST_SECONDS = 30.0


class PendingGathers:
    """The gathers of this process that go on after their step; an `AccessObserver`."""

    def __init__(self) -> None:
        """Observes nothing yet."""
        self._observed: frozenset[int] = frozenset()
        self._seconds = 0.0
        self._is_idle = threading.Event()  # no step is running
        self._is_idle.set()
        os.register_at_fork(before=self.finish_quietly)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Wraps a call that may update weights in part; other threads wait for its end."""
        self._is_idle.clear()
        try:
            yield
        finally:
            self._is_idle.set()

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

    def forget(self) -> None:
        """Ends the observation: weights that are lost can be assigned."""
        variable_access().forget(self._observed)
        self._observed = frozenset()

    def on_access(self, handles: Sequence[Any]) -> None:
        """See `AccessObserver`.

        Threads that Python has not started do not wait for a step, which may wait for them.
        """
        is_of_tensorflow = isinstance(threading.current_thread(), threading._DummyThread)
        if not is_of_tensorflow and not self._is_idle.wait(self._seconds):
            raise control_plane.EngineError(
                f"a step has not ended within {formatting.time(self._seconds)}, and another thread"
                " accesses its weights"
            )
        try:
            step_interrupts().during(self.finish)
        except control_plane.EngineError as error:
            engine_lib.undo_steps()
            lost = control_plane.lost(error)
            raise error if lost is None else current_job.get_job().lost(lost) from error


@STATE.value(on_reset=PendingGathers.forget, survives_fork=False)
def pending_gathers() -> PendingGathers:
    """Returns the gathers of this process."""
    return PendingGathers()
