"""The transport of control: small messages by which the ranks agree, apart from all gradients.

A backend (`backend.py`) determines what executes all-reduces, and names its control transport.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tf_libra.coordination.world import World
from tf_libra.internal import formatting
from tf_libra.internal.registry import Registry


class EngineError(RuntimeError):
    """The engine could not do what was requested; the message names ranks and reasons."""


class LostRankError(EngineError):
    """A rank is dead, disconnected, late beyond the timeout, or gave up."""


class ElsewhereError(LostRankError):
    """A rank is at a place between steps, and another rank is in a step or at another place."""


# What other ranks hear of one that leaves between steps; `why_program_ends`, too.
CLOSED = "it has closed its connections"
LEFT = "it is in another job now"
# How places begin that are no steps: a rank there and one in a step do not find each other.
_BETWEEN_STEPS = "between steps: "
_OPS = (
    "LibraAllReduce",
    "LibraCheckBranch",
    "LibraSend",
    "LibraReceive",
    "LibraCollective",
    "LibraMessage",
)


def lost(error: BaseException) -> str | None:
    """Why a rank is lost, if an error of this module or of an op of ours says that one is.

    A rank that has left its steps for another place is lost for those that have not.
    """
    import tensorflow as tf

    kernel = isinstance(error, tf.errors.AbortedError | tf.errors.DeadlineExceededError)
    named = kernel and any(op in str(error) for op in _OPS)
    if not (named or is_elsewhere(error) or isinstance(error, LostRankError)):
        return None
    return str(error)


def between_steps(place: str) -> str:
    """Return the name of a place at which ranks meet between two steps."""
    return _BETWEEN_STEPS + place


def is_elsewhere(error: BaseException) -> bool:
    """Return whether an error says that a rank is between steps and another one is not there."""
    import tensorflow as tf

    if isinstance(error, tf.errors.FailedPreconditionError):  # lanes have noticed
        return _BETWEEN_STEPS in str(error) and any(op in str(error) for op in _OPS)
    gave_up = isinstance(error, LostRankError | tf.errors.AbortedError)
    return isinstance(error, ElsewhereError) or (gave_up and ElsewhereError.__name__ in str(error))


def elsewhere(mine: str, theirs: str, text: str) -> EngineError:
    """Return the error of two ranks at different places.

    Args:
        mine: this rank's place.
        theirs: the other rank's.
        text: names both.
    """
    is_between = any(one.startswith(_BETWEEN_STEPS) for one in (mine, theirs))
    return ElsewhereError(text) if is_between else EngineError(text)


def why_program_ends() -> str:
    """Returns the reason to give the ranks that go on, while this process exits."""
    error = getattr(sys, "last_value", None)
    if error is None or hasattr(sys, "ps1"):  # a prompt goes on after errors
        return "its program has ended, where every rank must take equally many steps"
    said = f": {error}" if str(error) else ""
    return f"its program has ended with an error: {type(error).__name__}{said}"


def waited_too_long(rank: int, timeout_seconds: float | None, whom: str) -> str:
    """Returns the message about a rank that has waited for another one until its deadline.

    Args:
        rank: that waited.
        timeout_seconds: how long it waited.
        whom: what did not come.
    """
    return (
        f"rank {rank} has waited {formatting.time(timeout_seconds)} for {whom}, the limit of"
        " timeout_seconds (TF_LIBRA_TIMEOUT_SECONDS); if a rank works longer between steps, as in"
        " an evaluation, raise it or let the others wait in a barrier without a limit"
    )


class Control(Protocol):
    """Reaches the other ranks of a job. What involves them blocks, until a deadline at most.

    Every rank has to make the same calls in the same order.
    """

    @property
    def rank(self) -> int:
        """This process, from 0."""
        ...

    @property
    def world_size(self) -> int:
        """Number of processes."""
        ...

    @property
    def job(self) -> int:
        """Whose ranks it reaches: `World.job`."""
        ...

    def all_gather(self, message: Any) -> list[Any]:
        """Every rank's message, by rank. Messages are what JSON can say.

        Raises:
            LostRankError: a rank is dead, has given up, or did not arrive in time.
        """
        ...

    def broadcast(self, message: Any = None, *, kind: str = "a broadcast", place: str = "") -> Any:
        """Rank 0's message; what other ranks pass is ignored. Errors as for `all_gather`.

        Args:
            message: rank 0's.
            kind: what is broadcast, the same on every rank.
            place: where this rank is, for the error of a rank that is elsewhere.
        """
        ...

    def broadcast_bytes(self, payload: bytes) -> bytes:
        """Rank 0's bytes, at most 64 MiB. Errors as for `all_gather`."""
        ...

    def set_step(self, step: int) -> None:
        """Gives a number to what follows, for telemetry and messages."""
        ...

    def meet(self, what: str, function: str, *, quiet: bool = False) -> None:
        """Returns when every rank is at the same point of the same function.

        Args:
            what: the point.
            function: identity of the function.
            quiet: whether no message may be sent until `resume`, since what follows suffers
                nothing concurrent with it.

        Raises:
            tf.errors.OpError, EngineError: another rank is elsewhere, or gone.
        """
        ...

    def resume(self) -> None:
        """Ends the silence that a quiet meeting began."""
        ...

    def executing(self, what: str) -> contextlib.AbstractContextManager[None]:
        """While a step executes, whose all-reduces need every rank."""
        ...

    def why_lost(self, error: BaseException) -> str | None:
        """Why, if an error of this module or from a kernel means that a rank is lost.

        Other ranks may go on from their last commit; the same call would not succeed.
        """
        ...

    def abort(self, reason: str) -> None:
        """Tells every rank why this one gives up, and fails all that is under way."""
        ...

    def close(self, why: str = CLOSED) -> None:
        """Ends it, and all that waits for it.

        Args:
            why: the reason that ranks get that go on.

        Raises:
            EngineError: something that it has called does not return.
        """
        ...


@dataclass(frozen=True)
class ControlConfig:
    """The configuration with which the ranks start a control transport.

    Attributes:
        num_lanes: threads that all-reduces will ask for, for a carrier that executes some itself.
        timeout_seconds: how long to wait for another rank at most.
        stall_warning_seconds: after how long to warn that another rank has not arrived.
        liveness_seconds: after how long a host that does not answer is lost, for a carrier that
            has connections of its own.
    """

    num_lanes: int
    timeout_seconds: float
    stall_warning_seconds: float
    liveness_seconds: float = 10.0


class ControlTransport(Protocol):
    """A way to reach the other ranks: a frozen dataclass that registers itself.

    Attributes:
        name: by which backends choose it.
    """

    name: ClassVar[str]

    def running(self) -> Control | None:
        """Returns the control that this process has started, and not closed."""
        ...

    def offer(self, world: World, terms: ControlConfig) -> Any:
        """Returns what the other ranks have to know of this one before `start`, as JSON values.

        Raises:
            ValueError: the environment does not say how to be reached.
            EngineError: it cannot be as it says.
        """
        ...

    def start(self, world: World, terms: ControlConfig, offers: Sequence[Any]) -> Control:
        """Lets all ranks meet, all of which call this with all of their offers, by rank.

        Raises:
            ValueError: on every rank: the offers do not fit together.
            EngineError: a rank cannot be reached in time.
        """
        ...


REGISTRY: Registry[ControlTransport] = Registry("tf_libra.coordination.control_plane", "control")
register = REGISTRY.register
resolve = REGISTRY.resolve


def exchange_clocks(control: Control, count: int = 16) -> tuple[tuple[int, int], ...]:
    """When a message was sent to all ranks, and when all of theirs had come, `count` times.

    In nanoseconds since the epoch, by this host's clock, of which only the first is read: it may be
    set meanwhile. On every rank it must be called at the same place, as `all_gather`, whose errors
    it has.
    """
    found = []
    epoch_ns = time.time_ns() - time.monotonic_ns()
    for _ in range(count):
        sent_ns = time.monotonic_ns()
        control.all_gather(None)
        found.append((epoch_ns + sent_ns, epoch_ns + time.monotonic_ns()))
    return tuple(found)


def running() -> list[Control]:
    """Returns every control that reaches other ranks from this process, of any transport."""
    found = (kind().running() for kind in REGISTRY.by_name.values())
    return [one for one in found if one is not None]


def left_over(world: World) -> list[Control]:
    """Returns every control that still reaches the ranks of an earlier job, of any transport."""
    ours = (world.job, world.rank, world.size)
    return [one for one in running() if (one.job, one.rank, one.world_size) != ours]
