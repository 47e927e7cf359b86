"""One-sided reads of variables that other ranks train, while no script takes part there.

Each variable of a step in stages, or on one rank, has an owner: the first rank that trains it.
Ranks that do not train it have no value. Before anything on such a rank accesses the variable
(`variable_access.py`), it requests the value after its last step, and a thread of the owner
answers. The owner computes no other step before, since a step begins on all ranks together. If its
own script changes the variable in the meantime, the thread sends the value from before the change.
When an owner leaves the job, or drops the function, others first fetch all that they lack from it.
"""

import contextlib
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.backends import collective_ops
from tf_libra.backends import engine as engine_lib
from tf_libra.coordination import control_plane, current_job
from tf_libra.coordination.signal_handling import step_interrupts
from tf_libra.variable_sync.read_service import EndedSteps, collected, hand_over, read_service
from tf_libra.variable_sync.variable_access import variable_access


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

    rescues = False

    def __init__(self, function: str) -> None:
        """Knows no variables yet.

        Args:
            function: identity of the training function, equal on all ranks.
        """
        self.function = function
        self.is_released = False
        self._steps = EndedSteps()
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

    def value(self, number: int, step: int | None = None, *answer: int) -> Any:
        """See `ServedValues`; a step of None stands for that of this rank."""
        self._steps.await_reader(step)
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

    @property
    def serves(self) -> bool:
        """See `ServedValues`."""
        return bool(self._served)

    def hand_over(self) -> None:
        """See `ServedValues`."""
        engine = engine_lib.running()
        if engine is not None and self.serves:
            hand_over(engine, self.function, self._steps.number)
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
        self._steps.end()
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
            started: dict[int, Any] = {}
            errors: list[Exception] = []
            with collected(errors):
                for key in wanted:
                    variable = self._remote[key]
                    name = f"{self.function}: {variable.number} {self._steps.modulus}"
                    started[key] = collective_ops.receive_start(
                        variable.dtype, variable.shape, variable.owner, name, one_sided=True
                    )
            # A later read would get an answer that is left.
            for key, pending in started.items():
                with collected(errors):
                    _assign(wanted[key], collective_ops.received(pending))
                    self._drop(key)
            if errors:
                raise self._lost(errors[0], wanted) from errors[0]

    def rescue(self, complete: int | None) -> None:
        """See `ServedValues`; does nothing."""

    def take_over(self, owner: int, step: int) -> None:
        """Fetches all missing values of an owner after a step, the last one of that rank.

        Args:
            owner: the rank.
            step: the number of the step. This rank may still be about to receive its results.
        """
        self._steps.await_end(step)
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
        self.keep([handle._id for handle in handles])

    def keep(self, keys: Iterable[int]) -> None:
        """See `ServedValues`."""
        if not self._served:
            return
        with self._values:
            if self._is_computing:  # the values before the step are those of no request any more
                return
            for key in keys:
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
        """Forgets all variables, and ends waits for steps: the ranks have left the job."""
        self._steps.close()
        self.forget([*self._remote, *self._served])
        self._synchronized.clear()

    def release(self) -> None:
        """Records, at any place, that the function is gone: others fetch its variables soon."""
        self.is_released = True


def _read(variable: TrainedVariable, handle: Any) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)


def _assign(handle: Any, value: Any) -> None:
    if handle is not None:
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
