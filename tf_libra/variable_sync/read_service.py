"""The thread that answers one-sided reads of other ranks, for all functions of this process."""

import atexit
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tf_libra.backends import collective_ops, sharded_steps
from tf_libra.backends import engine as engine_lib
from tf_libra.coordination import control_plane
from tf_libra.coordination.signal_handling import step_interrupts
from tf_libra.internal import log_utils
from tf_libra.internal.process_state import STATE

_HAND_OVER = "hand over after step "
_RESCUE = "rescue after "
_ALL = "all functions"
# Longest wait for other ranks before this one ends the job by an error, and by a signal, after
# which the launcher kills it.
RESCUE_SECONDS = 30.0
SIGNAL_SECONDS = 1.0
# How often the thread looks for functions that were garbage-collected.
_POLL_SECONDS = 0.5
ERRORS = (tf.errors.OpError, control_plane.EngineError)


class EndedSteps:
    """The steps that have ended on this rank, for which threads wait."""

    # A read names steps modulo this: an owner is at most one step away, either way.
    MODULUS = 3

    def __init__(self) -> None:
        """Begins before the first step."""
        self.number = 0
        self._job = 0  # counts jobs, so that a wait can tell that its job is over
        self._ended = threading.Condition()

    @property
    def modulus(self) -> int:
        """Returns the number of steps as reads name it."""
        return self.number % self.MODULUS

    def end(self) -> None:
        """Ends a step."""
        with self._ended:
            self.number += 1
            self._ended.notify_all()

    def close(self) -> None:
        """Ends all waits by an error, as the ranks have left the job, and counts from 0 again."""
        with self._ended:
            self._job += 1
            self.number = 0  # as on ranks that begin with the next job
            self._ended.notify_all()

    def await_reader(self, step: int | None) -> None:
        """Waits for the end of the step that has ended on a reading rank, by its modulus.

        Raises:
            EngineError: this rank has left the job meanwhile.
        """
        with self._ended:
            self._await(lambda: step != (self.number + 1) % self.MODULUS, "the end of a step")

    def await_end(self, step: int) -> None:
        """Waits for the end of a step, by number; raises as `await_reader` does."""
        with self._ended:
            self._await(lambda: self.number >= step, "the end of a step")

    def _await(self, is_turn: Callable[[], bool], what: str) -> None:
        job = self._job
        while not is_turn() and self._job == job and engine_lib.running() is not None:
            self._ended.wait(_POLL_SECONDS)
        self._check_job(job)

    def _check_job(self, job: int) -> None:
        if self._job != job:
            raise control_plane.EngineError("this rank has left the job")


def hand_over(engine: engine_lib.Engine, function: str, step: int) -> None:
    """Lets the other ranks fetch what they lack of a function; other ranks may be gone.

    Args:
        engine: reaches the other ranks.
        function: identity of the function.
        step: number of steps that have ended on this rank.
    """
    _notify_all(engine, f"{function}: {_HAND_OVER}{step}")


def _notify_all(engine: engine_lib.Engine, name: str) -> None:
    """Waits until all other ranks have answered a notice, or are gone."""
    started = []
    for rank in set(range(engine.world_size)) - {engine.rank}:
        with contextlib.suppress(*ERRORS):
            started.append(collective_ops.receive_start(tf.float32, [0], rank, name, True))
    for pending in started:
        with contextlib.suppress(*ERRORS):
            collective_ops.received(pending)


@contextlib.contextmanager
def collected(errors: list[Exception]) -> Iterator[None]:
    """Adds the error of a read to others."""
    try:
        yield
    except ERRORS as error:
        errors.append(error)


class ServedValues(Protocol):
    """Values of one training function that other ranks read.

    Attributes:
        function: identity of the function, equal on all ranks.
        is_released: whether the function is gone.
        rescues: whether `rescue` has an effect.
    """

    function: str
    is_released: bool
    rescues: bool

    @property
    def serves(self) -> bool:
        """Returns whether other ranks may need values of this rank."""
        ...

    @property
    def is_empty(self) -> bool:
        """Returns whether no rank needs values of another rank."""
        ...

    def value(self, number: int, step: int, *answer: int) -> Any:
        """Returns a value after the last step; waits for the end of a step.

        Args:
            number: the variable's number.
            step: `EndedSteps.modulus` of the reading rank; after an error, see `rescue`.
            *answer: number of elements and dtype of an answer that can say that there is none
                (`partial_answer`); nothing for other answers.

        Raises:
            KeyError: this rank does not serve it.
        """
        ...

    def missing(self) -> list[Any]:
        """Returns the handles of existing variables whose values only other ranks have."""
        ...

    def fetch(self, handles: Sequence[Any]) -> None:
        """Fetches the values of those of these variables that this rank lacks."""
        ...

    def hand_over(self) -> None:
        """Lets the other ranks fetch the values that they lack."""
        ...

    def take_over(self, owner: int, step: int) -> None:
        """Fetches what an owner has, after a step, the last one of that rank."""
        ...

    def rescue(self, complete: int | None) -> None:
        """Fetches what this rank lacks, as it was before a step that has failed on some rank.

        Args:
            complete: number of complete steps on that rank (`num_complete_steps`), which has
                undone the others; None if that rank is this one, or is gone.
        """
        ...

    def keep(self, keys: Iterable[int]) -> None:
        """Keeps values for other ranks, as this rank is about to assign variables, by key."""
        ...

    def forget(self, keys: Iterable[int]) -> None:
        """Forgets variables to which each rank assigns its value, or whose ranks are gone."""
        ...

    def release(self) -> None:
        """Records, at any place, that the function is gone: others fetch its variables soon."""
        ...


class ReadService:
    """The thread that answers the reads of other ranks, for all functions of this process."""

    def __init__(self) -> None:
        """Starts no thread yet."""
        self._reads: dict[str, ServedValues] = {}
        self._finished: set[str] = set()  # functions that are gone
        self._thread: threading.Thread | None = None
        self._engine: int | None = None  # `Engine.number` of that which the thread answers
        self._ending = threading.Event()  # set when the script of this rank has ended
        self._has_ended = False
        self._answering = threading.Lock()
        self._patience: dict[int, float] = {}  # when to take over from each rank that ends

    @property
    def is_ending(self) -> bool:
        """True if the script of this rank has ended, and so reads nothing any more."""
        return self._ending.is_set()

    def start(self, reads: ServedValues) -> None:
        """Answers reads of a function's variables from now on."""
        self._reads[reads.function] = reads
        self._finished.discard(reads.function)
        engine = _engine()
        # The thread of an earlier engine may still wait.
        if self._thread is None or self._engine != engine or not self._thread.is_alive():
            # Last of all, so that it is called before the engine, which may be a new one, closes.
            atexit.unregister(self._end)
            atexit.register(self._end)
            step_interrupts().before_the_end(self._rescue_before_signal)
            self._engine = engine
            self._thread = threading.Thread(
                target=self._serve, args=(engine,), name="libra variable reads", daemon=True
            )
            self._thread.start()

    def keep(self, keys: Collection[int]) -> None:
        """Keeps values for other ranks, as this rank is about to assign variables, by key."""
        for reads in self._all():
            reads.keep(keys)

    def forget(self, keys: Collection[int]) -> None:
        """Forgets variables to which all ranks have assigned the same values."""
        for reads in self._all():
            reads.forget(keys)

    def settle(self) -> None:
        """Fetches missing values and lets others fetch, before this rank leaves the job.

        If a rank is gone, variables that it has trained stay without values.
        """
        every = () if self.is_ending else self._all()
        for reads in every:
            with contextlib.suppress(Exception):
                reads.fetch(reads.missing())
        _hand_over_all(every)

    def rescue(self, seconds: float = RESCUE_SECONDS) -> None:
        """Lets all ranks fetch what only others have, as this rank ends the job by an error.

        Args:
            seconds: longest wait.
        """
        engine = engine_lib.running()
        if engine is None or not any(reads.rescues and reads.serves for reads in self._all()):
            return
        has_ended = threading.Event()

        def rescue_all() -> None:
            try:
                sharded_steps.await_steps(seconds)
                complete = sharded_steps.num_complete_steps()
                self._rescue_all(None)
                _notify_all(engine, f"{_ALL}: {_RESCUE}{complete}")
            finally:
                has_ended.set()

        _start(rescue_all)
        has_ended.wait(seconds)

    def _rescue_all(self, complete: int | None) -> None:
        if self.is_ending:  # it reads nothing any more
            return
        for reads in self._all():
            with contextlib.suppress(Exception):  # later accesses raise it
                reads.rescue(complete)

    def _rescue_before_signal(self) -> None:
        self.rescue(SIGNAL_SECONDS)

    def _all(self) -> tuple[ServedValues, ...]:
        return tuple(self._reads.values())

    def _end(self) -> None:
        """Lets others fetch at the end of the process; if its script has failed, for a while."""
        self._ending.set()
        if getattr(sys, "last_value", None) is None:
            _hand_over_all(self._all())
        else:
            self.rescue()
        with self._answering:  # the engine stops soon, and an answer would fail
            self._has_ended = True

    def _serve(self, number: int | None) -> None:
        while (engine := engine_lib.running()) is not None and engine.number == number:
            try:
                request = engine.await_read(_POLL_SECONDS)
            except control_plane.EngineError:
                return
            self._hand_over_released()
            if request is None:
                continue
            try:
                self._answer(engine.number, *request)
            except Exception as error:
                if _engine() != engine.number:  # no rank waits for the answer any more
                    return
                text = f"answering rank {request[0]} about {request[1]}: {_describe(error)}"
                log_utils.logger(engine.rank).warning("reads of other ranks: %s", text)
                if not self._refuse(engine.number, *request):
                    engine.abort(text)
                    return

    def _answer(self, engine: int, rank: int, name: str) -> None:
        function, _, what = name.rpartition(": ")
        if not what.startswith((_HAND_OVER, _RESCUE)):
            self._send(engine, self._reads[function].value(*map(int, what.split())), rank, name)
            return

        def take_over_and_confirm() -> None:
            with contextlib.suppress(Exception):  # later accesses raise it
                if what.startswith(_RESCUE):
                    self._rescue_all(int(what.removeprefix(_RESCUE)))
                else:
                    self._take_over(engine, function, rank, int(what.removeprefix(_HAND_OVER)))
            with contextlib.suppress(Exception):  # in any case, as that rank waits
                self._send(engine, tf.zeros([0]), rank, name)

        _start(take_over_and_confirm)

    def _take_over(self, engine: int, function: str, owner: int, step: int) -> None:
        # Scripts often end together, and then this rank reads nothing more.
        now = time.monotonic()
        self._ending.wait(self._patience.setdefault(owner, now + _POLL_SECONDS) - now)
        while not self.is_ending and not {*self._reads, *self._finished} & {function}:
            if _engine() != engine:
                return
            time.sleep(_POLL_SECONDS)  # the first step is about to end
        if function in self._reads and not self.is_ending and _engine() == engine:
            self._reads[function].take_over(owner, step)

    def _refuse(self, engine: int, rank: int, name: str) -> bool:
        """Answers that there is no value; returns whether the read can be answered so."""
        _, _, *answer = name.rpartition(": ")[2].split()
        if len(answer) != 2:
            return False
        with contextlib.suppress(*ERRORS):
            self._send(engine, partial_answer(None, *map(int, answer)), rank, name)
        return True

    def _send(self, engine: int, value: Any, rank: int, name: str) -> None:
        """Sends an answer, unless the engine of the request is closed."""
        with self._answering:
            if not self._has_ended and _engine() == engine:
                collective_ops.send(value, rank, name, one_sided=True)

    @staticmethod
    def _hand_over_one(reads: ServedValues) -> None:
        _hand_over_all([reads])
        reads.release()

    def _hand_over_released(self) -> None:
        for reads in [read for read in self._all() if read.is_released]:
            if reads.is_empty:
                del self._reads[reads.function]
                self._finished.add(reads.function)
            elif reads.serves:
                reads.is_released = False
                _start(lambda reads=reads: self._hand_over_one(reads))


def partial_answer(part: Any, count: int, dtype: int) -> Any:
    """Returns an answer to a read: the elements, and 1; or zeros alone if there is no value.

    Args:
        part: vector of `count` elements; None for no value.
        count: number of elements.
        dtype: number of the dtype.
    """
    if part is None:
        return tf.zeros([count + 1], dtype)
    if part.shape != [count] or part.dtype != dtype:
        raise ValueError(f"the value must have {count} elements of {tf.as_dtype(dtype)}")
    return tf.concat([part, tf.ones([1], dtype)], 0)


def _hand_over_all(every: Iterable[ServedValues]) -> None:
    for reads in every:
        with contextlib.suppress(Exception):  # which would hide why this rank leaves
            reads.hand_over()


def _engine() -> int | None:
    """Returns the number of the engine that runs; None if none runs."""
    engine = engine_lib.running()
    return None if engine is None else engine.number


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _start(call: Any) -> None:
    """Starts a thread, or calls directly if the interpreter starts no more threads."""
    try:
        threading.Thread(target=call, name="libra variable hand-over", daemon=True).start()
    except RuntimeError:
        call()


@STATE.value(survives_fork=False)
def read_service() -> ReadService:
    """Returns the service of this process."""
    return ReadService()
