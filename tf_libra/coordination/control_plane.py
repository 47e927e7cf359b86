"""Control plane: small messages by which the ranks agree, separate from gradients.

A backend (`backend.py`) executes all-reduces, and names its control transport.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tf_libra.coordination.world import World
from tf_libra.internal import formatting
from tf_libra.internal.registry import ClassRegistry
from tf_libra.launcher import worker_hooks


class EngineError(RuntimeError):
    """Error of an engine that could not do what was requested; names ranks and reasons."""


class LostRankError(EngineError):
    """Error of a rank that is dead, disconnected, late beyond the timeout, or gave up."""


class ElsewhereError(LostRankError):
    """Error of a rank between steps while another rank is in a step or at another place."""


# Reasons that other ranks receive from a rank that leaves between steps.
CLOSED = "it has closed its connections"
TERMINATED = "it received SIGTERM"
LEFT = "it is in another job now"
# Prefix of sync points between steps. Ranks at such a point wait for no rank in a step.
_BETWEEN_STEPS = "between steps: "
_OPS = (
    "LibraAllReduce",
    "LibraCheckBranch",
    "LibraGatherOwned",
    "LibraAwaitGather",
    "LibraSumPartials",
    "LibraSend",
    "LibraReceive",
    "LibraCollective",
    "LibraMessage",
)
# From the first op's name to the node that TensorFlow names after the message, in a last line of
# its own. The message may quote another rank's error, and continue behind the node of that one.
_MESSAGE = re.compile(rf"(?:{'|'.join(_OPS)})\b(?s:.*)(?=\n\s*\[\[[^\n]*\]\](?: \[Op:\w+\])?\s*\Z)")
_WORKS_LONGER = (
    "if a rank works longer between steps, as in an evaluation, raise it or let the others wait in"
    " a barrier without a limit"
)


def lost(error: BaseException) -> str | None:
    """Returns why a rank is lost; None if the error does not mean that a rank is lost.

    Errors of this module, and errors of TF-Libra's ops, mean it. A rank at a place between steps is
    lost for ranks in a step.
    """
    import tensorflow as tf

    kernel = isinstance(error, tf.errors.AbortedError | tf.errors.DeadlineExceededError)
    named = kernel and any(op in str(error) for op in _OPS)
    if not (named or is_elsewhere(error) or isinstance(error, LostRankError)):
        return None
    return _without_location(str(error))


def _without_location(text: str) -> str:
    """Returns the message of an op of TF-Libra without the lines that locate the op in the graph.

    TensorFlow puts the node's name before and after the message, and Python shows the last line.
    """
    found = _MESSAGE.search(text)
    return text if found is None else found[0]


def between_steps(sync_point: str) -> str:
    """Returns the full name of a sync point between two steps."""
    return _BETWEEN_STEPS + sync_point


def is_elsewhere(error: BaseException) -> bool:
    """Returns whether an error means that a rank is between steps and another rank is not."""
    import tensorflow as tf

    if isinstance(error, tf.errors.FailedPreconditionError):  # raised by lanes
        return _BETWEEN_STEPS in str(error) and any(op in str(error) for op in _OPS)
    gave_up = isinstance(error, LostRankError | tf.errors.AbortedError)
    return isinstance(error, ElsewhereError) or (gave_up and ElsewhereError.__name__ in str(error))


def elsewhere(mine: str, theirs: str, text: str) -> EngineError:
    """Returns the error of two ranks at different places.

    Args:
        mine: this rank's place.
        theirs: the other rank's place.
        text: message that names both.
    """
    is_between = any(sync_point.startswith(_BETWEEN_STEPS) for sync_point in (mine, theirs))
    return ElsewhereError(text) if is_between else EngineError(text)


def why_program_ends() -> str:
    """Returns the reason that ranks that go on receive while this process exits."""
    error = getattr(sys, "last_value", None)
    if worker_hooks.ending().signal:
        return TERMINATED
    if error is None or hasattr(sys, "ps1"):  # a prompt goes on after errors
        return "its program has ended, where every rank must take equally many steps"
    details = f": {error}" if str(error) else ""
    return f"its program has ended with an error: {type(error).__name__}{details}"


def waited_too_long(
    rank: int, timeout_seconds: float | None, whom: str, remedy: str = _WORKS_LONGER
) -> str:
    """Returns the message about a rank that has waited for another rank until its deadline.

    Args:
        rank: the rank that waited.
        timeout_seconds: how long it waited.
        whom: ranks that did not come, or the place where they are missing.
        remedy: what the user can do.
    """
    return (
        f"rank {rank} has waited {formatting.time(timeout_seconds)} for {whom}, the limit of"
        f" timeout_seconds (TF_LIBRA_TIMEOUT_SECONDS); {remedy}"
    )


class Control(Protocol):
    """Control plane of a job. Calls that involve other ranks block until a deadline at most.

    Every rank must make the same calls in the same order.
    """

    @property
    def rank(self) -> int:
        """Rank of this process, from 0."""
        ...

    @property
    def world_size(self) -> int:
        """Number of processes."""
        ...

    @property
    def job(self) -> int:
        """Number of the job whose ranks it reaches: `World.job`."""
        ...

    def all_gather(self, message: Any) -> list[Any]:
        """Returns every rank's message, a JSON value, by rank.

        Raises:
            LostRankError: a rank is dead, has given up, or did not arrive in time.
        """
        ...

    def broadcast(
        self, message: Any = None, *, kind: str = "a broadcast", sync_point: str = ""
    ) -> Any:
        """Returns rank 0's message; other ranks' messages are ignored. Errors as for `all_gather`.

        Args:
            message: the message of rank 0.
            kind: description of the message, the same on every rank.
            sync_point: point that this rank has reached, for the error of a rank at another one.
        """
        ...

    def broadcast_bytes(self, payload: bytes) -> bytes:
        """Returns rank 0's bytes, at most 64 MiB. Errors as for `all_gather`."""
        ...

    def set_step(self, step: int) -> None:
        """Sets the number of the step that follows, for telemetry and messages."""
        ...

    def end_step(self, step: int) -> None:
        """Records that a step was completed: messages name the next one. Raises no error."""
        ...

    def barrier(self, what: str, function: str, *, quiet: bool = False) -> None:
        """Waits until every rank is at the same point of the same function.

        Args:
            what: name of the point.
            function: identity of the function.
            quiet: whether to send no message until `resume`, for an operation that allows no
                concurrent messages.

        Raises:
            tf.errors.OpError, EngineError: another rank is elsewhere, or gone.
        """
        ...

    def resume(self) -> None:
        """Sends messages again after a quiet `barrier`."""
        ...

    def executing(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Returns a context for the execution of a step, whose all-reduces need every rank."""
        ...

    def why_lost(self, error: BaseException) -> str | None:
        """Returns why a rank is lost; None if the error does not mean that a rank is lost.

        After the loss of a rank, the others may go on from their last commit.
        """
        ...

    def abort(self, reason: str) -> None:
        """Sends every rank the reason why this rank gives up, and fails all pending calls."""
        ...

    def close(self, why: str = CLOSED) -> None:
        """Closes the control plane, and fails all pending calls.

        Args:
            why: reason for the ranks that go on.

        Raises:
            EngineError: a thread of the control plane does not end.
        """
        ...


@dataclass(frozen=True)
class ControlConfig:
    """Configuration of a control transport, the same on all ranks.

    Attributes:
        num_lanes: communication threads, for a transport that also executes all-reduces.
        timeout_seconds: how long to wait for another rank at most.
        stall_warning_seconds: after how long to warn that another rank has not arrived.
        liveness_seconds: after how long a host that does not answer counts as lost, for a transport
            with its own connections.
    """

    num_lanes: int
    timeout_seconds: float
    stall_warning_seconds: float
    liveness_seconds: float = 10.0


class ControlTransport(Protocol):
    """Transport of control messages: a frozen dataclass that registers itself.

    Attributes:
        name: name by which backends choose the transport.
    """

    name: ClassVar[str]

    def running(self) -> Control | None:
        """Returns the control plane that this process has started and not closed."""
        ...

    def offer(self, world: World, terms: ControlConfig) -> Any:
        """Returns this rank's addresses for the other ranks' `start`, as JSON values.

        Raises:
            ValueError: the environment is invalid or incomplete.
            EngineError: this rank cannot listen at the address that the environment names.
        """
        ...

    def start(self, world: World, terms: ControlConfig, offers: Sequence[Any]) -> Control:
        """Connects all ranks; all of them call it, with the offers of all ranks.

        Raises:
            ValueError: on every rank: the offers are inconsistent.
            EngineError: a rank cannot be reached in time.
        """
        ...


REGISTRY: ClassRegistry[ControlTransport] = ClassRegistry(
    "tf_libra.coordination.control_plane", "control"
)
register = REGISTRY.register
resolve = REGISTRY.resolve


def exchange_clocks(control: Control, count: int = 16) -> tuple[tuple[int, int], ...]:
    """Returns when `count` messages were sent, and when all ranks' messages had arrived.

    Times are nanoseconds since the epoch by this host's clock, which is read once, since it may be
    set in between. All ranks call it at the same place. Errors are those of `all_gather`.
    """
    found = []
    epoch_ns = time.time_ns() - time.monotonic_ns()
    for _ in range(count):
        sent_ns = time.monotonic_ns()
        control.all_gather(None)
        found.append((epoch_ns + sent_ns, epoch_ns + time.monotonic_ns()))
    return tuple(found)


def running() -> list[Control]:
    """Returns the running control planes of this process, of all transports."""
    found = (kind().running() for kind in REGISTRY.by_name.values())
    return [control for control in found if control is not None]


def left_over(world: World) -> list[Control]:
    """Returns the control planes that still reach ranks of an earlier job, of all transports."""
    ours = (world.job, world.rank, world.size)
    return [found for found in running() if (found.job, found.rank, found.world_size) != ours]
