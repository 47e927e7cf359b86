"""Interface of a job: its ranks, and exchanges before the control plane runs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from tf_libra.coordination.control_plane import LostRankError
from tf_libra.coordination.world import World


class Job(Protocol):
    """A job of several processes, as a frozen dataclass.

    Attributes:
        name: name of the framework that has started it, for messages.
        by_strategy: whether a strategy of TensorFlow reduces gradients, so that its all-reduces
            are planned; otherwise every gradient is averaged.
        engines: names of the backends that can execute its all-reduces; empty for any.
        how_to_start: advice on how to start workers.
    """

    name: ClassVar[str]
    by_strategy: ClassVar[bool]
    engines: ClassVar[tuple[str, ...]]
    how_to_start: ClassVar[str]

    def rank_and_size(self) -> tuple[int, int]:
        """Returns the rank of this process and the world size; waits for no other rank.

        Raises:
            ValueError: there is no job yet.
        """
        ...

    def local_rank_and_size(self, timeout_seconds: float) -> tuple[int, int]:
        """Returns the rank among the processes of this host, and their number.

        Args:
            timeout_seconds: how long to wait for other ranks at most.

        Raises:
            ValueError: there is no job yet.
            LostRankError: a rank did not come in time.
        """
        ...

    def world(self, timeout_seconds: float) -> World:
        """Returns the ranks of the job.

        Args:
            timeout_seconds: how long to wait for other ranks at most.

        Raises:
            ValueError: there is no job yet.
            LostRankError: a rank did not come in time.
        """
        ...

    def is_another(self, world: World) -> bool:
        """Returns whether the job is another than the one of the earlier `world`."""
        ...

    def exchange_json(self, message: dict[str, Any], timeout_seconds: float) -> list[Any]:
        """Returns every rank's message, by rank. All ranks call it, in the same order.

        Args:
            message: JSON values.
            timeout_seconds: how long to wait for the other ranks.

        Raises:
            LostRankError: a rank did not come in time, or is gone.
        """
        ...

    def lost(self, message: str) -> Exception:
        """Returns the error that the job's own collectives raise when a rank is lost."""
        ...

    def is_elastic(self) -> bool:
        """Returns whether workers may join and leave."""
        ...

    def call_on_reset(self, callback: Callable[[], None]) -> None:
        """Calls `callback` whenever an elastic job begins again; does nothing for other jobs."""
        ...

    def call_before_shutdown(self, callback: Callable[[], None]) -> None:
        """Calls `callback` before the script ends the job, if it can, and goes on."""
        ...


def within(
    timeout_seconds: float, exchange: Callable[[], list[Any]], why_late: Callable[[], str]
) -> list[Any]:
    """Returns the result of `exchange`, which may block forever and cannot be interrupted.

    Raises:
        LostRankError: `exchange` failed, or did not return in time; then with the message that
            `why_late` returns.
    """
    results: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def call() -> None:
        try:
            results.put(exchange())
        except Exception as error:
            results.put(error)

    threading.Thread(target=call, name="libra rendezvous", daemon=True).start()
    try:
        found = results.get(timeout=timeout_seconds)
    except queue.Empty:
        raise LostRankError(why_late()) from None
    if isinstance(found, Exception):
        raise LostRankError(f"before the ranks met: {found}") from found
    return found
