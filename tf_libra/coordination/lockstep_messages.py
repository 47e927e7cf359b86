"""Messages between ranks that have nothing but a collective to exchange them by.

A gather waits until every rank has called it, for as long as that takes, so that ranks wait forever
for one that never comes, and a rank that gives up cannot say so. Here one thread of each rank
calls it, again and again: with the rank's message where that has one, and at least once in
`PERIOD_SECONDS` to say what it is at. A round in which not all have a message for the same
purpose delivers none, and the next is tried. So every rank learns within a period or two who has
given up and why, which rank waits where the others never come, and that no rank answers any more.
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
# How long a rank that ends waits for the others to learn of it.
PATIENCE_SECONDS = 5.0

_GIVES_UP, _CLOSES = "gives up", "closes"


@dataclass(frozen=True)
class LockstepMessage:
    """The message of one rank in a round.

    Attributes:
        num_done: steps that it has ended.
        at: the step that it executes; empty between steps.
        what: the exchange at which it waits; empty if at none.
        quiet: whether no round may follow that exchange until the rank goes on.
        end: how it ends, if it does.
        reason: why.
    """

    num_done: int = 0
    at: str = ""
    what: str = ""
    quiet: bool = False
    end: str = ""
    reason: str = ""

    def pack(self, payload: bytes) -> bytes:
        """With its message, as bytes."""
        return json.dumps(asdict(self)).encode() + b"\n" + payload

    @classmethod
    def unpack(cls, packed: bytes) -> tuple[LockstepMessage, bytes]:
        """Reads what `pack` wrote."""
        header, _, payload = packed.partition(b"\n")
        return cls(**json.loads(header)), payload


class LockstepMailbox:
    """This rank's part in the rounds of a job. Thread-safe; one exchange at a time."""

    def __init__(
        self,
        rank: int,
        terms: ControlConfig,
        gather: Callable[[bytes], list[bytes]],
        fail: Callable[[str, bool], None],
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        """Begins, as every other rank does.

        Args:
            rank: this process, from 0.
            terms: how long to wait, and to warn.
            gather: every rank's bytes, by rank; called by one thread.
            fail: called once if the job fails, with the reason, and whether a rank executes a
                step, in which it may wait for others forever.
            period_seconds: at least so often a round is held.
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
        """Why nothing can be exchanged any more."""
        return self._failure

    def check(self) -> None:
        """Raises the first failure."""
        if self._failure is not None:
            raise _again(self._failure)

    def exchange(self, what: str, payload: bytes, quiet: bool = False) -> list[bytes]:
        """Every rank's bytes, by rank, once all are at the same exchange.

        Args:
            what: the exchange, for messages; the same on every rank.
            payload: this rank's.
            quiet: whether no round may be held from then on, until `resume`.

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
        """Rounds are held again."""
        with self._changed:
            self._is_quiet = False
            self._changed.notify_all()

    @contextlib.contextmanager
    def executing(self, what: str) -> Iterator[None]:
        """While this rank executes a step that needs the others."""
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
        """Takes part in a last round; returns whether that was held.

        Args:
            reason: why the rank gives up, or has come to its end.
            gives_up: whether something has failed.
        """
        with self._changed:
            if self._failure is None and not self._is_stopped:
                self._say(end=_GIVES_UP if gives_up else _CLOSES, reason=reason)
                self._is_quiet = False
                self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(PATIENCE_SECONDS)
        held = not self._thread.is_alive()
        if not held and gives_up:
            self._end_with(LostRankError(f"rank {self._rank} gave up: {reason}"), True)
        return held

    def stop(self) -> None:
        """Holds no more rounds; what is under way ends with the collective."""
        with self._changed:
            self._is_stopped = True
            self._failure = self._failure or LostRankError("the ranks reach each other no more")
            self._changed.notify_all()

    def _say(self, **changes: object) -> None:
        self._note = LockstepMessage(**{**asdict(self._note), **changes})

    # Threads.

    def _post(self) -> None:
        """Calls what cannot be interrupted."""
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
                if self._judge([LockstepMessage.unpack(one) for one in self._round(packed)]):
                    break
        except EngineError as error:
            self._end_with(error, True)
        self._requests.put(None)

    def _is_due(self) -> bool:
        """Waits for the next round; false if there is none."""
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
        """Judges a round as every rank does; returns whether it was the last."""
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
        """Returns an error if another rank's step needs this rank, which waits here."""
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
    told = (f"{', '.join(ranks)} came to an end: {why}" for why, ranks in ended.items())
    return LostRankError("; ".join(told))


def _elsewhere(notes: Sequence[LockstepMessage]) -> EngineError | None:
    """An error where not all are at the same exchange."""
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
    """A new exception of the same words, with a traceback of its own."""
    return type(error)(*error.args)


def _warn(text: str) -> None:
    """Not to a log, which other ranks than 0 may silence."""
    sys.stderr.write(f"tf_libra: WARNING: {text}\n")
