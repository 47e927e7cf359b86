"""The job that this process is a rank of: who the others are, and a first word to them.

Who executes all-reduces, and what carries all that is said later, are matters of their own
(`backend.py`, `control_plane.py`).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from tf_libra.coordination.control_plane import LostRankError
from tf_libra.coordination.world import World


class Job(Protocol):
    """A job of several processes: a frozen dataclass.

    Attributes:
        name: of what has started it, for messages.
        by_strategy: whether gradients are summed by a strategy of TensorFlow's, whose all-reduces
            are planned; else every gradient is averaged.
        engines: names of the backends that can execute its all-reduces; empty: any.
        how_to_start: workers, in words.
    """

    name: ClassVar[str]
    by_strategy: ClassVar[bool]
    engines: ClassVar[tuple[str, ...]]
    how_to_start: ClassVar[str]

    def world(self, timeout_seconds: float) -> World:
        """Returns the ranks of the job.

        Args:
            timeout_seconds: how long to wait for others at most, if they have to answer.

        Raises:
            ValueError: there is no job yet.
            LostRankError: a rank did not come in time.
        """
        ...

    def is_another(self, world: World) -> bool:
        """Returns whether the ranks are others than those of the earlier `world`."""
        ...

    def exchange_json(self, message: dict[str, Any], timeout_seconds: float) -> list[Any]:
        """Every rank's message, by rank. All ranks call it, in the same order.

        Args:
            message: what JSON can say.
            timeout_seconds: how long to wait for the other ranks.

        Raises:
            LostRankError: a rank did not come in time, or is gone.
        """
        ...

    def lost(self, message: str) -> Exception:
        """The error that says that a rank is lost, as the job's own collectives do."""
        ...

    def is_elastic(self) -> bool:
        """Returns whether ranks may come and go."""
        ...

    def call_on_reset(self, callback: Callable[[], None]) -> None:
        """Has `callback` called whenever an elastic job begins again; no effect in others."""
        ...


def within(
    timeout_seconds: float, exchange: Callable[[], list[Any]], why_late: Callable[[], str]
) -> list[Any]:
    """Returns the result of `exchange`, which may wait forever without any way to interrupt it.

    Raises:
        LostRankError: it did not return in time, with the words of `why_late`; or it failed.
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
