"""Job of Horovod: its ranks, exchanges of small messages, and `hvd.join`.

Horovod carries the messages as uint8 tensors, never as pickled objects.
"""

import contextlib
import json
import os
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from tf_libra.coordination import control_plane
from tf_libra.coordination.control_plane import waited_too_long
from tf_libra.coordination.job import within
from tf_libra.coordination.world import World
from tf_libra.internal import patches, patching
from tf_libra.internal.process_state import STATE

_JOIN = "hvd.join()"


def import_horovod() -> Any:
    """Returns the module `horovod.tensorflow`.

    Raises:
        ImportError: Horovod is missing, or was built for another TensorFlow.
    """
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        raise ImportError(
            "Horovod is not built for the TensorFlow that is installed: install the extra"
            " tf-libra[horovod], or build Horovod with tools/build_horovod.py of tf-libra's sources"
            f" ({error}). Without it, start the script with tf-libra run, or by a launcher of"
            " docs/launchers.md"
        ) from error
    return hvd


def world() -> World:
    """Returns the ranks of this process's job.

    Raises:
        ImportError: Horovod is missing or was built for another TensorFlow.
        ValueError: `hvd.init()` has not been called.
    """
    hvd = import_horovod()
    if not hvd.is_initialized():
        raise ValueError(
            "Horovod is not initialized: call hvd.init() (import horovod.tensorflow as hvd)"
            " before the first training step, and start the script under a launcher:"
            " tf-libra run -np 2 python train.py. A script without Horovod must not import it"
        )
    job = _jobs().num_ended
    return World(rank=hvd.rank(), size=hvd.size(), local_size=hvd.local_size(), job=job)


class _Jobs:
    """Counter of the jobs of this process that a shutdown has ended."""

    def __init__(self) -> None:
        self.num_ended = 0
        self.before_shutdown: set[Callable[[], None]] = set()
        self._replaced = contextlib.ExitStack()
        self._replaced.enter_context(patching.replaced(patches.SHUTDOWN, self._counting))

    def _counting(self, shutdown: Callable[[], None]) -> Callable[[], None]:
        def counted() -> None:
            for callback in tuple(self.before_shutdown):
                callback()
            shutdown()
            self.num_ended += 1  # until the shutdown returns, this process is in the old job

        return counted


@STATE.value()
def _jobs() -> _Jobs:
    """Returns the counter of ended jobs, which is created at the first request for the ranks."""
    return _Jobs()


def internal_error(message: str) -> Exception:
    """Returns the error that Horovod's collectives raise and its elastic mode recovers from."""
    from horovod.common.exceptions import HorovodInternalError

    return HorovodInternalError(message)


def is_elastic() -> bool:
    """Returns whether this is called from within a function that `hvd.elastic.run` runs."""
    return bool(_elastic_states())


def call_on_reset(callback: Callable[[], None]) -> None:
    """Calls `callback` whenever elastic mode resets Horovod; does nothing in other modes."""
    for state in _elastic_states():
        # A state outlives resets.
        if callback not in state._reset_callbacks:
            state.register_reset_callbacks([callback])


def _elastic_states() -> list[Any]:
    """Returns the states that `hvd.elastic.run` notifies of host changes: one while it runs."""
    elastic = sys.modules.get("horovod.common.elastic")
    return [] if elastic is None else list(elastic.notification_manager._listeners)


def broadcast_variables(variables: list[Any]) -> None:
    """Copies rank 0's values of these `tf.Variable`s to all ranks, by Horovod itself."""
    import_horovod().broadcast_variables(variables, root_rank=0)


def is_known() -> bool:
    """Returns whether Horovod has been imported in this process, and initialized."""
    return "horovod.tensorflow" in sys.modules and bool(import_horovod().is_initialized())


def has_been_used() -> bool:
    """Returns whether this process has been a rank of Horovod, which may have been shut down."""
    return _jobs.is_created


def is_expected() -> bool:
    """Returns whether Horovod's launcher started this process, or the script imports Horovod."""
    return "HOROVOD_RANK" in os.environ or "horovod.tensorflow" in sys.modules


def gather(payload: bytes, name: str) -> list[bytes]:
    """Returns every rank's bytes, by rank, once all ranks have called it.

    Args:
        payload: bytes of this rank.
        name: name of Horovod's collective; one call per name at a time.
    """
    import numpy as np
    import tensorflow as tf
    from horovod.tensorflow.mpi_ops import MPI_LIB

    framed = np.frombuffer(struct.pack("<Q", len(payload)) + payload, dtype=np.uint8)
    with tf.device("/cpu:0"):
        gathered = MPI_LIB.horovod_allgather(tf.constant(framed), name=name)
    packed = gathered.numpy().tobytes()
    found, at = [], 0
    while at < len(packed):
        (length,) = struct.unpack_from("<Q", packed, at)
        found.append(packed[at + 8 : at + 8 + length])
        at += 8 + length
    return found


def exchange_json(
    message: dict[str, Any], timeout_seconds: float | None = None
) -> list[dict[str, Any]]:
    """Returns every rank's message, by rank, over Horovod.

    Args:
        message: JSON values.
        timeout_seconds: how long to wait for the other ranks; None to wait forever.

    Raises:
        LostRankError: a rank did not come in time, or Horovod has lost one.
    """
    payload = json.dumps(message).encode()

    def exchange() -> list[bytes]:
        return gather(payload, "tf_libra.rendezvous")

    def why_late() -> str:
        whom = (
            "the other ranks to come to their first step (Horovod's warnings of stalled tensors say"
            " which are missing)"
        )
        return waited_too_long(import_horovod().rank(), timeout_seconds, whom)

    # Horovod waits forever.
    gathered = (
        exchange() if timeout_seconds is None else within(timeout_seconds, exchange, why_late)
    )
    return [json.loads(message_bytes) for message_bytes in gathered]


def join_together(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the op behind `hvd.join` so that it blocks only once every rank has called it.

    Horovod lends a rank that has joined to its own all-reduces, but not to all-reduces over lanes:
    there the other ranks would wait for it until they time out.
    """
    import tensorflow as tf

    def join(*args: Any, **kwargs: Any) -> Any:
        controls = control_plane.running()
        if not controls or not tf.executing_eagerly():
            return original(*args, **kwargs)
        try:
            for control in controls:
                control.barrier("the end of this rank's data", _JOIN, quiet=True)
        except (tf.errors.OpError, control_plane.EngineError) as error:
            reason = (
                f"{_JOIN} was called by rank {controls[0].rank}, and another rank has a step to"
                " take. TF-Libra's all-reduces need every rank in every step: loop over"
                " tf_libra.join(batches), or give each rank equally many"
            )
            for control in controls:
                control.abort(reason)
            raise ValueError(f"{reason} ({error})") from error
        try:
            return original(*args, **kwargs)
        finally:
            for control in controls:
                control.resume()

    return join


@dataclass(frozen=True)
class HorovodJob:
    """Processes that Horovod's launcher has started; see `Job`."""

    name: ClassVar[str] = "Horovod"
    by_strategy: ClassVar[bool] = False
    engines: ClassVar[tuple[str, ...]] = ()
    how_to_start: ClassVar[str] = "start workers with tf-libra run -np 2 python train.py"

    def rank_and_size(self) -> tuple[int, int]:
        """Returns rank and world size."""
        found = world()
        return found.rank, found.size

    def local_rank_and_size(self, timeout_seconds: float) -> tuple[int, int]:
        """Returns local rank and local size."""
        return int(import_horovod().local_rank()), world().local_size

    def world(self, timeout_seconds: float) -> World:
        """Returns the ranks of the job."""
        return world()

    def is_another(self, before: World) -> bool:
        """Returns whether the job is a new one, as after `hvd.shutdown` and `hvd.init`."""
        try:
            return world() != before
        except ValueError:
            # A failure has ended Horovod, too: the ranks are still those that failed.
            return False

    def exchange_json(self, message: dict[str, Any], timeout_seconds: float) -> list[Any]:
        """Returns every rank's message, by rank."""
        return exchange_json(message, timeout_seconds)

    def lost(self, message: str) -> Exception:
        """Returns the error that Horovod's own collectives raise."""
        return internal_error(message)

    def is_elastic(self) -> bool:
        """Returns whether the job runs in elastic mode."""
        return is_elastic()

    def call_on_reset(self, callback: Callable[[], None]) -> None:
        """Calls `callback` whenever elastic mode resets Horovod."""
        call_on_reset(callback)

    def call_before_shutdown(self, callback: Callable[[], None]) -> None:
        """See `Job`."""
        _jobs().before_shutdown.add(callback)
