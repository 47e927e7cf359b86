"""Job of a `tf.distribute.MultiWorkerMirroredStrategy`: TensorFlow's own cluster.

Its workers are listed in TF_CONFIG, or by the strategy's cluster resolver. Until lanes are
connected, they exchange messages by TensorFlow's coordination service, which the strategy starts: a
key-value store, which does not require the ranks to be in lockstep.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tf_libra.coordination.control_plane import EngineError, LostRankError, waited_too_long
from tf_libra.coordination.job import within
from tf_libra.coordination.launcher_environment import TRAINING_TASKS
from tf_libra.coordination.world import World, host_identity, local_rank_and_size
from tf_libra.internal.process_state import STATE

EXAMPLE = (
    '\'{"cluster": {"worker": ["host1:12345", "host2:12345"]},'
    ' "task": {"type": "worker", "index": 0}}\''
)


@dataclass(frozen=True)
class WorkerAddresses:
    """Addresses of the workers that train together with this process.

    Attributes:
        tasks: type, index and address of each worker, by rank.
        rank: rank of this process.
    """

    tasks: tuple[tuple[str, int, str], ...]
    rank: int

    def name(self, rank: int) -> str:
        """Returns the name of a rank in TF_CONFIG, with its address."""
        kind, index, address = self.tasks[rank]
        return f"{kind} {index} at {address}"

    def host(self, rank: int) -> str:
        """Returns the name or numeric address of a rank's host."""
        return self.tasks[rank][2].rpartition(":")[0].strip("[]")


def cluster_of(jobs: dict[str, Sequence[str]], kind: str, index: int) -> WorkerAddresses:
    """Returns the workers of a cluster that train together with one task.

    Args:
        jobs: addresses of tasks, by type, as in TF_CONFIG.
        kind: type of the task. An evaluator, and any type that does not train, is alone.
        index: index of the task.
    """
    if kind not in TRAINING_TASKS:
        return WorkerAddresses(((kind, index, jobs[kind][index]),), 0)
    tasks = [
        (task_type, number, address)
        for task_type in TRAINING_TASKS
        for number, address in enumerate(jobs.get(task_type, ()))
    ]
    rank = next(rank for rank, task in enumerate(tasks) if task[:2] == (kind, index))
    return WorkerAddresses(tuple(tasks), rank)


def joined() -> WorkerAddresses | None:
    """Returns the cluster that this process has joined by a strategy; None if there is none."""
    import tensorflow as tf

    from tf_libra.internal import tf_internal

    definition = tf_internal.eager_context()._collective_ops_server_def
    if definition is None:
        return None
    jobs = tf.train.ClusterSpec(definition.cluster).as_dict()
    return cluster_of(jobs, definition.job_name, definition.task_index)


def is_made() -> bool:
    """Returns whether this process made a `MultiWorkerMirroredStrategy`, even without workers."""
    from tf_libra.internal import tf_internal

    return bool(tf_internal.eager_context()._collective_scoped_allocator_enabled_ops)


@dataclass(frozen=True)
class MultiWorkerJob:
    """Workers of TF_CONFIG.

    Attributes:
        cluster: addresses of the workers that train.
    """

    cluster: WorkerAddresses

    name: ClassVar[str] = "MultiWorkerMirroredStrategy"
    by_strategy: ClassVar[bool] = True
    engines: ClassVar[tuple[str, ...]] = ("lanes",)
    how_to_start: ClassVar[str] = "name more than one worker in TF_CONFIG"

    def rank_and_size(self) -> tuple[int, int]:
        """Returns rank and world size."""
        return self.cluster.rank, len(self.cluster.tasks)

    def local_rank_and_size(self, timeout_seconds: float) -> tuple[int, int]:
        """Returns the local rank and the local size, after an exchange of hosts."""
        rank, size = self.rank_and_size()
        if size == 1:
            return 0, 1
        return local_rank_and_size(_store(self.cluster).machines(timeout_seconds), rank)

    def world(self, timeout_seconds: float) -> World:
        """Returns the ranks. They exchange once which of them share a host.

        Raises:
            EngineError: the coordination service cannot be used.
            LostRankError: a rank did not come in time.
        """
        rank, size = self.cluster.rank, len(self.cluster.tasks)
        if size == 1:
            return World(0, 1, 1)
        machines = _store(self.cluster).machines(timeout_seconds)
        return World(rank, size, machines.count(machines[rank]), self.cluster.host(rank))

    def is_another(self, world: World) -> bool:
        """Returns False: a process cannot join another cluster."""
        return False

    def exchange_json(self, message: dict[str, Any], timeout_seconds: float) -> list[Any]:
        """Returns every rank's message, by rank; see `Job`."""
        return _store(self.cluster).exchange(message, timeout_seconds)

    def lost(self, message: str) -> Exception:
        """Returns the error that the strategy's collectives raise."""
        import tensorflow as tf

        return tf.errors.UnavailableError(None, None, message)

    def is_elastic(self) -> bool:
        """Returns False."""
        return False

    def call_on_reset(self, callback: Callable[[], None]) -> None:
        """Does nothing: the job is not elastic."""

    def call_before_shutdown(self, callback: Callable[[], None]) -> None:
        """Does nothing: the job ends with the script."""


class _Store:
    """Exchanges by keys of the coordination service. Each key is used once."""

    def __init__(self, cluster: WorkerAddresses) -> None:
        self._cluster = cluster
        self._num_exchanges = 0
        self._machines: list[str] = []

    def machines(self, timeout_seconds: float) -> list[str]:
        """Returns host keys by rank, equal for ranks that can connect by Unix sockets."""
        if not self._machines:
            # If the host has no identity, its name has to do.
            mine = host_identity() or self._cluster.host(self._cluster.rank)
            self._machines = self.exchange(mine, timeout_seconds)
        return self._machines

    def exchange(self, message: Any, timeout_seconds: float) -> list[Any]:
        """Returns every rank's message, by rank. All ranks call it, in the same order.

        Raises:
            EngineError: the service cannot be used.
            LostRankError: a rank did not come in time, or is gone.
        """
        import tensorflow as tf

        number = self._num_exchanges
        self._num_exchanges += 1
        until = time.monotonic() + timeout_seconds
        waits_for = 0

        def exchange() -> list[Any]:
            nonlocal waits_for
            _set(f"tf_libra/{number}/{self._cluster.rank}", json.dumps(message))
            found = []
            for waits_for in range(len(self._cluster.tasks)):
                left = max(until - time.monotonic(), 0.001)
                found.append(json.loads(_get(f"tf_libra/{number}/{waits_for}", left)))
            return found

        def why_late() -> str:
            whom = f"rank {waits_for} ({self._cluster.name(waits_for)}) to come to its first step"
            return waited_too_long(self._cluster.rank, timeout_seconds, whom)

        try:
            return within(timeout_seconds, exchange, why_late)
        except LostRankError as error:
            cause = error.__cause__
            if isinstance(cause, tf.errors.DeadlineExceededError):
                raise LostRankError(why_late()) from cause
            gone = tf.errors.UnavailableError | tf.errors.AbortedError | tf.errors.CancelledError
            if cause is not None and not isinstance(cause, gone):
                raise EngineError(
                    "TensorFlow's coordination service, by which the workers of TF_CONFIG meet, has"
                    f" failed: {cause}"
                ) from cause
            raise


@STATE.value()
def _stores() -> dict[WorkerAddresses, _Store]:
    """Returns the stores of this process, which count the keys that they have used."""
    return {}


def _store(cluster: WorkerAddresses) -> _Store:
    if cluster not in _stores():
        _stores()[cluster] = _Store(cluster)
    return _stores()[cluster]


def _set(key: str, value: str) -> None:
    from tf_libra.internal import tf_internal

    tf_internal.eager_context().set_config_key_value(key, value)


def _get(key: str, timeout_seconds: float) -> str:
    """Waits until a rank has set the key, and returns its value."""
    from tf_libra.internal import tf_internal

    get = tf_internal.eager_context().get_config_key_value
    # TensorFlow 2.18 has no timeout, and waits forever.
    has_timeout = "timeout_in_ms" in inspect.signature(get).parameters
    timeout = {"timeout_in_ms": max(int(1000 * timeout_seconds), 1)} if has_timeout else {}
    return str(get(key, **timeout))
