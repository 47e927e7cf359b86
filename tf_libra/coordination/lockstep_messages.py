"""Messages between ranks that share nothing but a blocking collective.

A gather blocks until every rank has called it. If a rank never comes, the others wait forever, and
a rank that gives up cannot announce it. Here a thread of each rank calls the gather in rounds: with
the rank's message if there is one, and at least every `PERIOD_SECONDS` with its state. A round
delivers messages only if all ranks have one for the same exchange. So within about two periods
every rank learns which rank gave up and why, which waits at another place, or that one is silent.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from tf_libra.coordination.control_plane import (
    ControlConfig,
    EngineError,
    LostRankError,
    elsewhere,
    waited_too_long,
)
from tf_libra.internal import formatting

PERIOD_SECONDS = 1.0
# How long a rank that ends waits for the others to receive its reason.
PATIENCE_SECONDS = 5.0

_GIVES_UP, _CLOSES = "gives up", "closes"


@dataclass(frozen=True)
class LockstepMessage:
    """State of one rank in a round.

    Attributes:
        num_done: number of steps that it has completed.
        at: step that it executes; empty between steps.
        what: exchange at which it waits; empty if there is none.
        quiet: whether to hold no round after that exchange until the rank resumes.
        end: how the rank ends; empty if it does not.
        reason: reason for the end.
    """

    num_done: int = 0
    at: str = ""
    what: str = ""
    quiet: bool = False
    end: str = ""
    reason: str = ""

    def pack(self, payload: bytes) -> bytes:
        """Returns the state with a payload, as bytes."""
        return json.dumps(asdict(self)).encode() + b"\n" + payload

    @classmethod
    def unpack(cls, packed: bytes) -> tuple[LockstepMessage, bytes]:
        """Reads the bytes of `pack`."""
        header, _, payload = packed.partition(b"\n")
        return cls(**json.loads(header)), payload


class LockstepMailbox:
    """Mailbox of this rank in the rounds of a job. Thread-safe; one exchange at a time."""

    def __init__(
        self,
        rank: int,
        terms: ControlConfig,
        gather: Callable[[bytes], list[bytes]],
        fail: Callable[[str, bool], None],
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        """Starts the rounds, as every other rank does.

        Args:
            rank: rank of this process, from 0.
            terms: timeout, and time until a warning.
            gather: returns every rank's bytes, by rank; one thread calls it.
            fail: called once if the job fails, with the reason, and with True if a rank is in a
                step, where it may wait for others forever.
            period_seconds: longest time between two rounds.
        """
        self._rank = rank
        self._terms = terms
        self._gather = gather
        self._fail = fail
        self._period_seconds = period_seconds
        self._changed = threading.Condition()
        self._note = LockstepMessage()
        self._payload = b""
        self._answer: list[bytes] | EngineError | None = None
        self._failure: EngineError | None = None
        self._is_quiet = False
        self._is_stopped = False
        self._last: list[LockstepMessage] = []
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[list[bytes] | Exception] = queue.SimpleQueue()
        threading.Thread(target=self._post, name="libra control", daemon=True).start()
        self._thread = threading.Thread(target=self._run, name="libra rounds", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> EngineError | None:
        """Error that ended the rounds; None while rounds are held."""
        return self._failure

    def check(self) -> None:
        """Raises the first failure."""
        if self._failure is not None:
            raise _again(self._failure)

    def exchange(self, what: str, payload: bytes, quiet: bool = False) -> list[bytes]:
        """Returns every rank's bytes, by rank, once all ranks are at the same exchange.

        Args:
            what: name of the exchange, the same on every rank.
            payload: bytes of this rank.
            quiet: whether to hold no round afterwards, until `resume`.

        Raises:
            LostRankError: a rank is gone, gave up or did not come in time.
            EngineError: another rank is at another exchange, or waits in a step for this one.
        """
        until = time.monotonic() + self._terms.timeout_seconds
        with self._changed:
            self.check()
            self._answer = None
            self._is_quiet = False
            self._say(what=what, quiet=quiet)
            self._payload = payload
            self._changed.notify_all()
            try:
                while self._answer is None:
                    self.check()
                    left = until - time.monotonic()
                    if left <= 0:
                        raise LostRankError(self._why_late(what))
                    self._changed.wait(left)
            finally:
                self._say(what="", quiet=False)
                self._payload = b""
            answer = self._answer
            if isinstance(answer, EngineError):
                raise answer
            return answer

    def resume(self) -> None:
        """Holds rounds again."""
        with self._changed:
            self._is_quiet = False
            self._changed.notify_all()

    @contextlib.contextmanager
    def executing(self, what: str) -> Iterator[None]:
        """Marks this rank as executing a step, which needs the other ranks."""
        with self._changed:
            self.check()
            self._say(at=what)
        ended = 0
        try:
            yield
            ended = 1
        finally:
            with self._changed:
                self._say(at="", num_done=self._note.num_done + ended)

    def end(self, reason: str, *, gives_up: bool = True) -> bool:
        """Announces the end in a last round; returns whether the round was held.

        Args:
            reason: reason why the rank gives up, or ends.
            gives_up: whether the rank has failed.
        """
        with self._changed:
            if self._failure is None and not self._is_stopped:
                self._say(end=_GIVES_UP if gives_up else _CLOSES, reason=reason)
                self._is_quiet = False
                self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(PATIENCE_SECONDS)
        is_stuck = not self._thread.is_alive()
        if not is_stuck and gives_up:
            self._end_with(LostRankError(f"rank {self._rank} gave up: {reason}"), True)
        return is_stuck

    def stop(self) -> None:
        """Holds no more rounds. A round in progress ends with the collective."""
        with self._changed:
            self._is_stopped = True
            self._failure = self._failure or LostRankError("the ranks reach each other no more")
            self._changed.notify_all()

    def _say(self, **changes: object) -> None:
        self._note = LockstepMessage(**{**asdict(self._note), **changes})

    # Threads.

    def _post(self) -> None:
        """Calls the gather, which cannot be interrupted."""
        while (request := self._requests.get()) is not None:
            try:
                self._results.put(self._gather(request))
            except Exception as error:
                self._results.put(error)

    def _run(self) -> None:
        try:
            while self._is_due():
                with self._changed:
                    packed = self._note.pack(self._payload)
                if self._judge(
                    [LockstepMessage.unpack(packed_state) for packed_state in self._round(packed)]
                ):
                    break
        except EngineError as error:
            self._end_with(error, True)
        self._requests.put(None)

    def _is_due(self) -> bool:
        """Waits until a round is due; returns False if no round follows."""
        until = time.monotonic() + self._period_seconds
        with self._changed:
            while not self._is_stopped:
                left = until - time.monotonic()
                if self._is_quiet:
                    self._changed.wait()
                elif self._note.what or self._note.end or left <= 0:
                    return True
                else:
                    self._changed.wait(left)
        return False

    def _round(self, packed: bytes) -> list[bytes]:
        self._requests.put(packed)
        start, warned = time.monotonic(), False
        while True:
            waited = time.monotonic() - start
            to_warning = self._terms.stall_warning_seconds - waited
            if not warned and to_warning <= 0:
                warned = True
                _warn(
                    f"rank {self._rank} has waited {formatting.time(waited)} for another rank to"
                    " answer"
                )
            left = self._terms.timeout_seconds - waited
            if left <= 0:
                whom = "a rank to answer (Horovod's warnings of stalled tensors say which)"
                raise LostRankError(waited_too_long(self._rank, self._terms.timeout_seconds, whom))
            try:
                found = self._results.get(timeout=left if warned else min(left, to_warning))
            except queue.Empty:
                continue
            if isinstance(found, Exception):
                raise LostRankError(f"rank {self._rank}: Horovod has failed: {found}")
            return found

    def _judge(self, everyone: Sequence[tuple[LockstepMessage, bytes]]) -> bool:
        """Evaluates a round by the same rule as every rank; returns whether it was the last."""
        notes = [note for note, _ in everyone]
        self._last = notes
        if any(note.end for note in notes):
            self._end_with(_why_ended(notes), any(note.at for note in notes))
            return True
        with self._changed:
            if all(note.what for note in notes):
                self._answer = _elsewhere(notes) or [payload for _, payload in everyone]
                self._is_quiet = isinstance(self._answer, list) and notes[0].quiet
            elif notes[self._rank].what:
                self._answer = self._waited_for(notes)
            if self._answer is not None:
                self._say(what="", quiet=False)
            self._changed.notify_all()
        return False

    def _waited_for(self, notes: Sequence[LockstepMessage]) -> EngineError | None:
        """Returns an error if another rank is in a step that needs this rank, which waits here."""
        mine = notes[self._rank]
        for rank, note in enumerate(notes):
            if note.at and note.num_done >= mine.num_done:
                return elsewhere(
                    mine.what,
                    note.at,
                    f"rank {self._rank} is at {mine.what}, and rank {rank} at {note.at}, which"
                    f" rank {self._rank} has not ended: every rank must do the same",
                )
        return None

    def _end_with(self, failure: EngineError, in_step: bool) -> None:
        with self._changed:
            if self._failure is not None:
                return
            self._failure = failure
            self._changed.notify_all()
        self._fail(str(failure), in_step)

    def _why_late(self, what: str) -> str:
        missing = [
            f"rank {rank}" + (f" (at {note.at or note.what})" if note.at or note.what else "")
            for rank, note in enumerate(self._last)
            if note.what != what
        ]
        whom = ", ".join(missing) or "a rank that does not answer"
        return waited_too_long(self._rank, self._terms.timeout_seconds, f"{whom}, at {what}")


def _why_ended(notes: Sequence[LockstepMessage]) -> EngineError:
    for rank, note in enumerate(notes):
        if note.end == _GIVES_UP:
            return LostRankError(f"rank {rank} gave up: {note.reason}")
    ended: dict[str, list[str]] = {}  # by reason
    for rank, note in enumerate(notes):
        if note.end:
            ended.setdefault(note.reason, []).append(f"rank {rank}")
    reasons = (f"{', '.join(ranks)} came to an end: {why}" for why, ranks in ended.items())
    return LostRankError("; ".join(reasons))


def _elsewhere(notes: Sequence[LockstepMessage]) -> EngineError | None:
    """Returns an error if the ranks are at different exchanges."""
    for rank, note in enumerate(notes):
        if note.what != notes[0].what:
            return elsewhere(
                notes[0].what,
                note.what,
                f"rank 0 is at {notes[0].what}, and rank {rank} at {note.what}: every rank must"
                " do the same",
            )
    return None


def _again(error: EngineError) -> EngineError:
    """Returns a copy of an exception, with its own traceback."""
    return type(error)(*error.args)


def _warn(text: str) -> None:
    """Writes a warning to stderr, since ranks other than 0 may silence their logs."""
    sys.stderr.write(f"tf_libra: WARNING: {text}\n")
