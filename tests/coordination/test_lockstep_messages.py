"""Rounds, between threads that stand for ranks: a gather that waits for all, and nothing else."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_libra.coordination.control_plane import ControlConfig, EngineError, LostRankError
from tf_libra.coordination.lockstep_messages import LockstepMailbox, LockstepMessage

PATIENT = ControlConfig(0, 60.0, 60.0)
PERIOD = 0.02


class Collective:
    """A stand-in for Horovod's all-gather: waits for all, forever; fails when it is shut down."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Condition()
        self._here: dict[int, bytes] = {}
        self._gathered: list[bytes] = []
        self._count = 0
        self._is_over = False

    def gather(self, rank: int, payload: bytes) -> list[bytes]:
        with self._lock:
            mine = self._count
            assert rank not in self._here, "a rank calls it twice at once"
            self._here[rank] = payload
            if len(self._here) == self._size:
                self._gathered = [self._here[i] for i in range(self._size)]
                self._here = {}
                self._count += 1
                self._lock.notify_all()
            while self._count == mine:
                if self._is_over:
                    raise RuntimeError("Horovod has been shut down")
                self._lock.wait()
            return self._gathered

    def shut_down(self) -> None:
        with self._lock:
            self._is_over = True
            self._lock.notify_all()


class Job:
    """Ranks that are threads."""

    def __init__(self, size: int, terms: ControlConfig, period: float) -> None:
        self.collective = Collective(size)
        self.failed: list[tuple[int, str, bool]] = []
        self.ranks = [
            LockstepMailbox(
                rank,
                terms,
                functools.partial(self.collective.gather, rank),
                functools.partial(self._fail, rank),
                period,
            )
            for rank in range(size)
        ]
        self.pool = ThreadPoolExecutor(size)

    def _fail(self, rank: int, reason: str, in_step: bool) -> None:
        self.failed.append((rank, reason, in_step))

    def on(self, rank: int, call: Callable[[LockstepMailbox], Any]) -> "Future[Any]":
        return self.pool.submit(call, self.ranks[rank])

    def on_all(self, call: Callable[[int, LockstepMailbox], Any]) -> list[Any]:
        futures = [self.pool.submit(call, *arguments) for arguments in enumerate(self.ranks)]
        return [future.result(60) for future in futures]


@contextlib.contextmanager
def job(size: int, terms: ControlConfig = PATIENT, period: float = PERIOD) -> Iterator[Job]:
    started = Job(size, terms, period)
    try:
        yield started
    finally:
        for rank in started.ranks:
            rank.stop()
        started.collective.shut_down()
        started.pool.shutdown()


@given(
    size=st.integers(1, 5),
    payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=4),
    data=st.data(),
)
@settings(max_examples=15, deadline=None)
def test_every_rank_receives_all_messages(
    size: int, payloads: list[bytes], data: st.DataObject
) -> None:
    in_steps = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))

    def take_part(rank: int, rounds: LockstepMailbox) -> list[list[bytes]]:
        found = []
        for number, payload in enumerate(payloads):
            if in_steps[rank]:
                with rounds.executing(f"step {number}"):
                    pass
            found.append(rounds.exchange(f"exchange {number}", bytes([rank]) + payload))
        return found

    # No round comes before a request: it might find ranks that have sent only half of it.
    with job(size, period=3600) as workers:
        expected = [[bytes([rank]) + payload for rank in range(size)] for payload in payloads]
        assert workers.on_all(take_part) == [expected] * size
        assert workers.on_all(lambda _, rounds: rounds.end("done", gives_up=False)) == [True] * size
        ranks = ", ".join(f"rank {rank}" for rank in range(size))
        assert {reason for _, reason, _ in workers.failed} == {f"{ranks} came to an end: done"}


@pytest.mark.parametrize("at", ["idle", "in an exchange", "in a step", "giving up, too"])
def test_reason_of_an_abort_reaches_all_ranks(at: str) -> None:
    # Where all give up, no round is held before all have said so.
    with job(3, period=3600 if "too" in at else PERIOD) as workers:
        others: list[Future[Any]] = []
        entered = threading.Barrier(3)
        leave = threading.Event()

        def in_step(rounds: LockstepMailbox) -> None:
            with rounds.executing("step 7 of f"):
                entered.wait()
                leave.wait(60)

        if at == "in an exchange":
            others = [workers.on(rank, lambda r: r.exchange("a gathering", b"")) for rank in (0, 2)]
        elif at == "in a step":
            others = [workers.on(rank, in_step) for rank in (0, 2)]
            entered.wait()
        elif at == "giving up, too":
            others = [workers.on(rank, lambda r: r.end("so do I")) for rank in (0, 2)]
        assert workers.on(1, lambda r: r.end("ValueError: no such thing")).result(60)
        for rank, rounds in enumerate(workers.ranks):
            rounds._thread.join(60)
            expected = (
                "rank 0 gave up: so do I" if "too" in at else "rank 1 gave up: ValueError: no"
            )
            with pytest.raises(LostRankError, match=expected):
                workers.on(rank, lambda r: r.exchange("what follows", b"")).result(60)
        leave.set()
        for other in others if at == "in an exchange" else ():
            with pytest.raises(LostRankError, match=r"rank 1 .*ValueError: no such thing"):
                other.result(60)
        # Only who waits in a step is to be torn out of it.
        assert {in_step for _, _, in_step in workers.failed} == {at == "in a step"}
        assert sorted(rank for rank, _, _ in workers.failed) == [0, 1, 2]


def test_rank_whose_step_waits_for_a_rank_that_waits_here_is_named() -> None:
    """Rank 1 has not come to the step that rank 0 executes, and waits for rank 0 elsewhere."""
    with job(2) as workers:
        entered, leave = threading.Event(), threading.Event()

        def in_step(rounds: LockstepMailbox) -> None:
            with rounds.executing("step 1 of f"):
                entered.set()
                leave.wait(60)

        first = workers.on(0, in_step)
        entered.wait(60)
        with pytest.raises(EngineError, match=r"rank 1.*rank 0.*step 1"):
            workers.on(1, lambda r: r.exchange("a new trace", b"")).result(60)
        leave.set()
        first.result(60)


def test_rank_that_is_late_with_a_step_which_others_have_ended_is_waited_for() -> None:
    with job(2) as workers:
        entered, leave = threading.Event(), threading.Event()

        def slow(rounds: LockstepMailbox) -> list[bytes]:
            with rounds.executing("step 1 of f"):
                entered.set()
                leave.wait(60)
            return rounds.exchange("a gathering", b"0")

        def fast(rounds: LockstepMailbox) -> list[bytes]:
            with rounds.executing("step 1 of f"):
                pass
            return rounds.exchange("a gathering", b"1")

        first, second = workers.on(0, slow), workers.on(1, fast)
        entered.wait(60)
        while not any(note.what for note in workers.ranks[0]._last):  # a round in which one waits
            assert not second.done()
        leave.set()
        assert first.result(60) == second.result(60) == [b"0", b"1"]


def test_ranks_at_different_exchanges_both_say_so() -> None:
    with job(2) as workers:
        found = [
            workers.on(rank, lambda r, at=at: r.exchange(at, b"")) for rank, at in enumerate("ab")
        ]
        for future in found:
            with pytest.raises(EngineError, match=r"rank 0.*rank 1"):
                future.result(60)
        # That ends nothing: who catches it may go on.
        answers = workers.on_all(lambda rank, r: r.exchange("c", bytes([rank])))
        assert answers == [[b"\0", b"\1"]] * 2


def test_rank_that_does_not_come_is_named_with_what_it_is_at() -> None:
    with job(2, ControlConfig(0, 1.0, 60.0)) as workers:
        leave = threading.Event()

        def slow(rounds: LockstepMailbox) -> None:
            with rounds.executing("step 1 of f"):
                pass
            with rounds.executing("step 2 of f"):
                leave.wait(60)

        def fast(rounds: LockstepMailbox) -> None:
            for number in (1, 2):
                with rounds.executing(f"step {number} of f"):
                    pass
            while not any(note.at == "step 2 of f" for note in rounds._last):
                pass  # the other is late, and has said so
            rounds.exchange("a gathering", b"")

        workers.on(0, slow)
        late = (
            r"rank 1 has waited 1 s for rank 0 \(at step 2 of f\), at a gathering.*timeout_seconds"
        )
        with pytest.raises(LostRankError, match=late):
            workers.on(1, fast).result(60)
        leave.set()


def test_process_that_stops_answering_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    collective = Collective(2)  # whose other rank never calls it
    failed: list[tuple[str, bool]] = []
    reported = threading.Event()

    def fail(reason: str, in_step: bool) -> None:
        failed.append((reason, in_step))
        reported.set()

    rounds = LockstepMailbox(
        0, ControlConfig(0, 1.0, 0.1), lambda p: collective.gather(0, p), fail, PERIOD
    )
    with rounds.executing("step 1 of f"):
        assert reported.wait(60)
    assert failed == [(str(rounds.failure), True)]
    assert "has waited 1 s for a rank to answer" in failed[0][0]
    assert "WARNING: rank 0 has waited" in capfd.readouterr().err
    collective.shut_down()


def test_failure_of_the_collective_is_everybodys() -> None:
    with job(2) as workers:
        waiting = workers.on(0, lambda r: r.exchange("a gathering", b""))
        workers.collective.shut_down()
        with pytest.raises(LostRankError, match=r"Horovod.*Horovod"):
            waiting.result(60)


def test_after_a_quiet_exchange_nothing_is_gathered_until_all_go_on() -> None:
    with job(2) as workers:
        workers.on_all(lambda _, r: r.exchange("join", b"", quiet=True))
        count = workers.collective._count
        assert [r._is_quiet for r in workers.ranks] == [True, True]
        # Another caller may mean to be quiet, too.
        workers.on_all(lambda _, r: r.exchange("join again", b"", quiet=True))
        workers.ranks[0].resume()
        workers.ranks[1].resume()
        assert (
            workers.on_all(lambda rank, r: r.exchange("after", bytes([rank])))
            == [[b"\0", b"\1"]] * 2
        )
        assert workers.collective._count > count


@given(
    note=st.builds(
        LockstepMessage, st.integers(0, 9), *[st.text() for _ in range(2)], quiet=st.booleans()
    ),
    payload=st.binary(),
)
def test_notes_arrive_as_they_were(note: LockstepMessage, payload: bytes) -> None:
    assert LockstepMessage.unpack(note.pack(payload)) == (note, payload)
