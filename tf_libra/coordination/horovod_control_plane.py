"""Control plane over Horovod's collectives.

It opens no connections, so it works wherever Horovod works.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

from tf_libra.coordination import control_plane, horovod_job
from tf_libra.coordination.control_plane import EngineError, LostRankError
from tf_libra.coordination.lockstep_messages import LockstepMailbox
from tf_libra.coordination.world import World
from tf_libra.internal import native, patches, patching
from tf_libra.internal.process_state import STATE

_MAX_BROADCAST_BYTES = 64 << 20
# How long to wait for the cause of an error of Horovod, which arrives by another message.
_CAUSE_SECONDS = 3.0


class HorovodControl:
    """Control plane by rounds of Horovod's all-gather; see `Control`."""

    def __init__(self, world: World, terms: control_plane.ControlConfig) -> None:
        """Starts the rounds, as every other rank does."""
        self._world = world
        self._shutdown = _Shutdown(self._on_shutdown)
        self._step = 0
        native.load().c.TfLibraStartHorovod(world.rank, world.size)
        self._rounds = LockstepMailbox(
            world.rank, terms, lambda note: horovod_job.gather(note, "tf_libra.control"), self._fail
        )

    @property
    def rank(self) -> int:
        """Rank of this process, from 0."""
        return self._world.rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self._world.size

    @property
    def job(self) -> int:
        """Number of the job whose ranks it reaches."""
        return self._world.job

    def all_gather(self, message: Any) -> list[Any]:
        """Returns every rank's message, a JSON value, by rank.

        Raises:
            LostRankError: a rank is dead, has given up, or did not arrive in time.
            EngineError: a rank is elsewhere.
        """
        mine = json.dumps(message, sort_keys=True).encode()
        everyone = self._rounds.exchange(self._at_step("a gathering"), mine)
        return [json.loads(message) for message in everyone]

    def broadcast(
        self, message: Any = None, *, kind: str = "a broadcast", sync_point: str = ""
    ) -> Any:
        """Returns rank 0's message; other messages are ignored. Errors as for `all_gather`."""
        return json.loads(self._broadcast(json.dumps(message, sort_keys=True).encode(), kind))

    def broadcast_bytes(self, payload: bytes) -> bytes:
        """Returns rank 0's bytes, at most 64 MiB. Errors as for `all_gather`."""
        return self._broadcast(payload, "a broadcast")

    def _broadcast(self, payload: bytes, kind: str) -> bytes:
        mine = payload if self.rank == 0 else b""
        if len(mine) > _MAX_BROADCAST_BYTES:
            raise EngineError(
                f"a broadcast message has {len(mine)} bytes, but at most 64 MiB are allowed"
            )
        return self._rounds.exchange(self._at_step(kind), mine)[0]

    def set_step(self, step: int) -> None:
        """Sets the number of the step that follows, for messages."""
        self._rounds.check()
        self._step = step
        native.load().c.TfLibraSetStep(step)

    def end_step(self, step: int) -> None:
        """Records that a step was completed; see `Control`."""
        self.set_step(step + 1)

    def barrier(self, what: str, function: str, *, quiet: bool = False) -> None:
        """Waits until every rank is at the same point of the same function; see `Control`."""
        self._rounds.exchange(f"{what}, {function}", b"", quiet)

    def resume(self) -> None:
        """Holds rounds again after a quiet `barrier`."""
        self._rounds.resume()

    def executing(self, what: str) -> AbstractContextManager[None]:
        """Returns a context for the execution of a step, whose all-reduces need every rank."""
        return self._rounds.executing(what)

    def why_lost(self, error: BaseException) -> str | None:
        """Returns why a rank is lost, with the cause of Horovod's errors; None if none is lost."""
        if isinstance(error, LostRankError):
            return str(error)
        if not _is_horovods(error):
            return None
        until = time.monotonic() + _CAUSE_SECONDS
        while self._rounds.failure is None and time.monotonic() < until:
            time.sleep(0.01)
        cause = self._rounds.failure
        return f"{cause or error}; step {self._step} was not completed"

    def abort(self, reason: str) -> None:
        """Sends every rank the reason why this rank gives up, and fails all pending calls."""
        self._rounds.end(reason)

    def close(self, why: str = control_plane.CLOSED) -> None:
        """Closes the control plane of this rank, and sends the reason to the others."""
        self._rounds.end(why, gives_up=False)
        self._rounds.stop()
        self._shutdown.put_back()
        native.load().c.TfLibraStopHorovod()
        if self in _controls():
            _controls().remove(self)

    def _at_step(self, what: str) -> str:
        return f"{what} at step {self._step}"

    def _fail(self, reason: str, in_step: bool) -> None:
        native.load().c.TfLibraFailHorovod(native.message(reason))
        # Only a shutdown ends the wait in an all-reduce of Horovod.
        if in_step:
            threading.Thread(target=self._shutdown.now, name="libra shutdown", daemon=True).start()

    def _on_shutdown(self) -> None:
        self._rounds.stop()


def _is_horovods(error: BaseException) -> bool:
    import tensorflow as tf

    lost = tf.errors.UnknownError | tf.errors.AbortedError
    return isinstance(error, lost) and "Horovod" in str(error)


class _Shutdown:
    """Horovod's shutdown, one call at a time; no round of the job follows."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        self._lock = threading.Lock()
        self._is_over = False  # the job; Horovod may begin another
        self._replaced = contextlib.ExitStack()
        self._replaced.enter_context(patching.replaced(patches.SHUTDOWN, self._calling))

    def _calling(self, original: Callable[[], None]) -> Callable[[], None]:
        self._original = original
        return self._called

    def _called(self) -> None:
        self._before()
        with self._lock:
            self._is_over = True
            self._original()

    def now(self) -> None:
        """Shuts Horovod down on all ranks; every wait there ends with an error."""
        with self._lock:
            if not self._is_over:
                self._is_over = True
                self._original()

    def put_back(self) -> None:
        """Restores Horovod's own shutdown."""
        with self._lock:  # of two concurrent calls, one would wait for the thread forever
            self._replaced.close()


@STATE.value(survives_fork=False)
def _controls() -> list[HorovodControl]:
    """Returns the control planes that this process has started and not closed: at most one."""
    return []


@control_plane.register
@dataclass(frozen=True)
class HorovodControlTransport:
    """Transport of control messages over Horovod's collectives."""

    name: ClassVar[str] = "horovod"

    def running(self) -> HorovodControl | None:
        """Returns the control plane that this process has started and not closed."""
        return next(iter(_controls()), None)

    def offer(self, world: World, terms: control_plane.ControlConfig) -> None:
        """Returns no address: Horovod is connected to every rank."""

    def start(
        self, world: World, terms: control_plane.ControlConfig, offers: Sequence[Any]
    ) -> HorovodControl:
        """Starts the rounds."""
        _controls().append(HorovodControl(world, terms))
        return _controls()[-1]
