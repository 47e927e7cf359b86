"""One-sided reads of variables that other ranks train, while no script takes part there.

Each variable of a step in stages, or on one rank, has an owner: the first rank that trains it.
Ranks that do not train it have no value. Before anything on such a rank accesses the variable
(`variable_access.py`), it requests the value after its last step, and a thread of the owner
answers. The owner computes no other step before, since a step begins on all ranks together. If its
own script changes the variable in the meantime, the thread sends the value from before the change.
When an owner leaves the job, or drops the function, others first fetch all that they lack from it.
"""

import atexit
import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.backends import collective_ops
from tf_libra.backends import engine as engine_lib
from tf_libra.coordination import control_plane, current_job
from tf_libra.coordination.signal_handling import step_interrupts
from tf_libra.internal import log_utils
from tf_libra.internal.process_state import STATE
from tf_libra.variable_sync.variable_access import variable_access

_HAND_OVER = "hand over after step "
# A read names the steps of its rank modulo this: an owner is at most one step away, either way.
_MODULUS = 3
# How often the thread looks for functions that were garbage-collected.
_POLL_SECONDS = 0.5
_ERRORS = (tf.errors.OpError, control_plane.EngineError)


@dataclass(frozen=True)
class TrainedVariable:
    """Variable that other ranks read from its owner.

    Attributes:
        number: its number in the function, equal on all ranks.
        key: its key in this process.
        name: its name.
        dtype: dtype of its value.
        shape: static shape of its value.
        handle: weak reference to its handle.
        owner: the rank that serves it.
        is_used: whether this rank, not the owner, computes with a value of its own, such as moving
            averages of its examples, which others do not read.
    """

    number: int
    key: int
    name: str
    dtype: tf.DType
    shape: tf.TensorShape
    handle: "weakref.ref[Any]"
    owner: int
    is_used: bool = False


class VariableReads:
    """Variables of one training function: values of this rank for others, and of others for it.

    It is an `AccessObserver` of all these variables.
    """

    def __init__(self, function: str) -> None:
        """Knows no variables yet.

        Args:
            function: identity of the training function, equal on all ranks.
        """
        self.function = function
        self.is_released = False
        self._step = 0  # number of steps that have ended on this rank
        self._step_ended = threading.Condition()
        self._fetching = threading.RLock()
        self._remote: dict[int, TrainedVariable] = {}  # by key
        self._computing = threading.Lock()
        self._is_computing = False
        self._values = threading.Lock()  # guards the next two
        self._served: dict[int, tuple[TrainedVariable, Any]] = {}  # with the handle, by key
        self._before_access: dict[int, Any] = {}  # values after the last step, by key
        # By number, those that this rank has sent to all, which may still be reading before that.
        self._synchronized: dict[int, TrainedVariable] = {}

    @property
    def is_empty(self) -> bool:
        """True if no rank needs values of another rank."""
        return not self._served and not self.missing()

    def missing(self, owner: int | None = None) -> list[Any]:
        """Returns the handles of existing variables whose values only other ranks have.

        Args:
            owner: the only owner to consider; None for all.
        """
        remote = tuple(self._remote.values())
        found = [variable.handle() for variable in remote if owner in (None, variable.owner)]
        return [handle for handle in found if handle is not None]

    def is_missing(self, key: int) -> bool:
        """Returns whether only another rank has the value of a variable."""
        return key in self._remote

    # On owners.

    @contextlib.contextmanager
    def computing(self, variables: Collection[TrainedVariable]) -> Iterator[None]:
        """Wraps the computation of a step, during which no value is sent.

        Args:
            variables: the variables that the step changes, and this rank serves.
        """
        with self._computing:
            self._is_computing = True
            try:
                with self._values:
                    self._before_access.clear()
                    self._synchronized.clear()
                    for variable in variables:
                        if variable.key not in self._served:
                            self._served[variable.key] = (variable, variable.handle())
                variable_access().observe(self._served, self)
                read_service().start(self)
                with variable_access().unobserved():
                    yield
            finally:
                self._is_computing = False

    def value(self, number: int, step: int | None = None) -> Any:
        """Returns the value of a variable after the last step; waits for the end of a step.

        Args:
            number: the variable's number.
            step: number of steps that have ended on the reading rank, modulo `_MODULUS`; None for
                as many as on this rank.

        Raises:
            KeyError: this rank does not serve it.
        """
        with self._step_ended:
            while step == (self._step + 1) % _MODULUS and engine_lib.running() is not None:
                self._step_ended.wait(_POLL_SECONDS)
        with self._computing, self._values:
            for variable, handle in self._served.values():
                if variable.number == number:
                    value = self._before_access.get(variable.key)
                    return _read(variable, handle) if value is None else value
            # It is as after the last step until the reader takes part in another one.
            if number in self._synchronized:
                variable = self._synchronized[number]
                return _read(variable, variable.handle())
        raise KeyError(number)

    def hand_over(self) -> None:
        """Lets the other ranks fetch the values that they lack; other ranks may be gone."""
        engine = engine_lib.running()
        if engine is None or not self._served:
            return
        started = []
        for rank in set(range(engine.world_size)) - {engine.rank}:
            with contextlib.suppress(*_ERRORS):
                name = f"{self.function}: {_HAND_OVER}{self._step}"
                started.append(collective_ops.receive_start(tf.float32, [0], rank, name, True))
        for pending in started:
            with contextlib.suppress(*_ERRORS):
                collective_ops.received(pending)
        self.forget(tuple(self._served))

    # On the other ranks.

    def end_step(self, variables: Iterable[TrainedVariable]) -> None:
        """Frees values that other ranks have changed and serve, and observes accesses to them."""
        with self._fetching:
            changed = {entry.key: entry for entry in variables if entry.key not in self._remote}
            self._remote |= changed
            variable_access().observe(changed, self)
            for variable in changed.values():  # from now on, other threads fetch
                if not variable.is_used:
                    _assign(variable.handle(), tf.zeros([0], variable.dtype))
        with self._step_ended:
            self._step += 1
            self._step_ended.notify_all()
        read_service().start(self)
        in_datasets = variable_access().captured_by_datasets() if self._remote else ()
        if in_datasets:
            self.fetch([handle for handle in self.missing() if handle._id in in_datasets])

    def fetch(self, handles: Sequence[Any]) -> None:
        """Fetches the values of those of these variables that this rank lacks.

        Raises:
            HorovodInternalError, or `tf.errors.UnavailableError` under a strategy of TensorFlow:
                the rank that has them is gone or late.
        """
        with self._fetching:
            wanted = {handle._id: handle for handle in handles if handle._id in self._remote}
            try:
                started = []
                for key in wanted:
                    variable = self._remote[key]
                    name = f"{self.function}: {variable.number} {self._step % _MODULUS}"
                    started.append(
                        collective_ops.receive_start(
                            variable.dtype, variable.shape, variable.owner, name, one_sided=True
                        )
                    )
                for (key, handle), pending in zip(wanted.items(), started, strict=True):
                    _assign(handle, collective_ops.received(pending))
                    self._drop(key)
            except _ERRORS as error:
                raise self._lost(error, wanted) from error

    def take_over(self, owner: int, step: int) -> None:
        """Fetches all missing values of an owner after a step, the last one of that rank.

        Args:
            owner: the rank.
            step: the number of the step. This rank may still be about to receive its results.
        """
        with self._step_ended:
            while self._step < step and engine_lib.running() is not None:
                self._step_ended.wait(_POLL_SECONDS)
        self.fetch(self.missing(owner))

    def _drop(self, key: int) -> None:
        variable_access().forget([key])
        self._remote.pop(key, None)

    def _lost(self, error: BaseException, wanted: Collection[int]) -> BaseException:
        lost = control_plane.lost(error)
        if lost is None:
            return error
        first = next((self._remote[key] for key in wanted if key in self._remote), None)
        assert first is not None
        return current_job.get_job().lost(
            f"variable {first.name!r} of {self.function} has its value on rank {first.owner}:"
            f" {lost}"
        )

    # On all ranks.

    def on_access(self, handles: Sequence[Any]) -> None:
        """See `AccessObserver`."""
        if any(handle._id in self._remote for handle in handles):
            step_interrupts().during(lambda: self.fetch(handles))
        if not self._served:
            return
        with self._values:
            if self._is_computing:  # the values before the step are those of no request any more
                return
            for handle in handles:
                key = handle._id
                if key in self._served and key not in self._before_access:
                    self._before_access[key] = _read(*self._served[key])

    def forget(self, keys: Iterable[int]) -> None:
        """Forgets variables that have their values on every rank, or whose ranks are gone."""
        with self._fetching:  # what another thread still fetches must not replace later values
            known = (self._served.keys() | self._remote.keys()) & {*keys}
            variable_access().forget(known)
            for key in known:
                self._remote.pop(key, None)
                served = self._served.pop(key, None)
                if served is not None:
                    self._synchronized[served[0].number] = served[0]
                self._before_access.pop(key, None)

    def forget_all(self) -> None:
        """Forgets all variables: the ranks have left the job."""
        self.forget([*self._remote, *self._served])
        self._synchronized.clear()

    def release(self) -> None:
        """Records, at any place, that the function is gone: others fetch its variables soon."""
        self.is_released = True


class ReadService:
    """The thread that answers the reads of other ranks, for all functions of this process."""

    def __init__(self) -> None:
        """Starts no thread yet."""
        self._reads: dict[str, VariableReads] = {}
        self._finished: set[str] = set()  # functions that are gone
        self._thread: threading.Thread | None = None
        self._is_ending = self._has_ended = False
        self._answering = threading.Lock()

    def start(self, reads: VariableReads) -> None:
        """Answers reads of a function's variables from now on."""
        self._reads[reads.function] = reads
        self._finished.discard(reads.function)
        if self._thread is None:
            atexit.register(self._end)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._serve, name="libra variable reads", daemon=True
            )
            self._thread.start()

    def forget(self, keys: Collection[int]) -> None:
        """Forgets variables to which all ranks have assigned the same values."""
        for reads in tuple(self._reads.values()):
            reads.forget(keys)

    def settle(self) -> None:
        """Fetches missing values and lets others fetch, before this rank leaves the job.

        If a rank is gone, variables that it has trained stay without values.
        """
        every = () if self._is_ending else tuple(self._reads.values())
        with contextlib.suppress(Exception):
            for reads in every:
                reads.fetch(reads.missing())
        for reads in every:
            reads.hand_over()

    def _end(self) -> None:
        """Lets others fetch at the end of the process, unless its script has failed."""
        self._is_ending = True  # no script reads here any more
        if getattr(sys, "last_value", None) is None:
            for reads in tuple(self._reads.values()):
                reads.hand_over()
        with self._answering:  # the engine stops soon, and an answer would fail
            self._has_ended = True

    def _serve(self) -> None:
        while (engine := engine_lib.running()) is not None:
            try:
                request = engine.await_read(_POLL_SECONDS)
            except control_plane.EngineError:
                return
            try:
                if request is not None:
                    self._answer(*request)
                self._hand_over_released()
            except Exception as error:
                log_utils.logger(engine.rank).warning("reads of other ranks: %s", error)
                engine.abort(f"{type(error).__name__}: {error}")
                return

    def _answer(self, rank: int, name: str) -> None:
        function, _, what = name.rpartition(": ")
        if not what.startswith(_HAND_OVER):
            self._send(self._reads[function].value(*map(int, what.split())), rank, name)
            return

        def take_over_and_confirm() -> None:
            with contextlib.suppress(Exception):  # later accesses raise it
                while not self._is_ending and not {*self._reads, *self._finished} & {function}:
                    if engine_lib.running() is None:
                        return
                    time.sleep(_POLL_SECONDS)  # the first step is about to end
                if function in self._reads and not self._is_ending:
                    self._reads[function].take_over(rank, int(what.removeprefix(_HAND_OVER)))
                self._send(tf.zeros([0]), rank, name)

        _start(take_over_and_confirm)

    def _send(self, value: Any, rank: int, name: str) -> None:
        with self._answering:
            if not self._has_ended and engine_lib.running() is not None:
                collective_ops.send(value, rank, name, one_sided=True)

    def _hand_over_released(self) -> None:
        for reads in [read for read in self._reads.values() if read.is_released]:
            if reads.is_empty:
                del self._reads[reads.function]
                self._finished.add(reads.function)
            elif reads._served:
                reads.is_released = False
                _start(lambda reads=reads: (reads.hand_over(), reads.release()))


def _start(call: Any) -> None:
    """Starts a thread, or calls directly if the interpreter starts no more threads."""
    try:
        threading.Thread(target=call, name="libra variable hand-over", daemon=True).start()
    except RuntimeError:
        call()


def _read(variable: TrainedVariable, handle: Any) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)


def _assign(handle: Any, value: Any) -> None:
    if handle is not None:
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)


@STATE.value(survives_fork=False)
def read_service() -> ReadService:
    """Returns the service of this process."""
    return ReadService()
