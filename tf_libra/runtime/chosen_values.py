"""Values that a step reads and nothing trains, which the script of each rank may choose.

Examples are weights of a rank's own examples, or its data in a captured tensor. Under data
parallelism each rank computes with its own values, under other strategies one rank's count for all.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from tf_libra.internal.process_state import STATE, OnReset
from tf_libra.runtime.concrete_traces import KnownTrace
from tf_libra.runtime.step_tracer import StepCall
from tf_libra.variable_sync.bound_variables import BoundVariable
from tf_libra.variable_sync.sharded_variables import shard_registry
from tf_libra.variable_sync.step_variables import StepVariables
from tf_libra.variable_sync.variable_access import variable_access


class ChosenValues:
    """Chosen values of one training function, whose digests ranks compare."""

    def __init__(self, variables: StepVariables) -> None:
        """Knows no values yet.

        Args:
            variables: variables of the function.
        """
        self._variables = variables
        self._found: WeakKeyDictionary[KnownTrace, Sequence[BoundVariable]] = WeakKeyDictionary()

    def digests(self, call: StepCall) -> list[str]:
        """Returns digests of the values that a call reads, in the same order on every rank.

        Values that a decorated function trains on some ranks only are left out: it serves them.
        """
        found = self._find(call)
        trained = shard_registry().trained_keys() if found else ()
        return [_value_digests().digest(value) for value in found if value.key not in trained]

    def stepping(self, call: StepCall) -> contextlib.AbstractContextManager[None]:
        """Returns a context for a call, which only reads these values."""
        return _value_digests().unchanged({value.key for value in self._found.get(call.trace, ())})

    def _find(self, call: StepCall) -> Sequence[BoundVariable]:
        found = self._found.get(call.trace)
        if found is None:
            touched = call.touched()
            found = self._variables.chosen(call.trace.flow(call.concrete, touched), touched)
            if not call.passed_variables:  # arguments would live as long as the trace
                self._found[call.trace] = found
        return found


class _ValueDigests:
    """Digests of values, each made again only after an access that may have changed the value."""

    def __init__(self) -> None:
        self._digests: dict[int, str] = {}  # by key
        self._unchanged: set[int] = set()  # keys of variables that the present call only reads

    def digest(self, value: BoundVariable) -> str:
        if value.key not in self._digests:
            with variable_access().unobserved():
                self._digests[value.key] = value.digest()
            if value.is_variable:
                variable_access().observe([value.key], self)
        return self._digests[value.key]

    @contextlib.contextmanager
    def unchanged(self, keys: set[int]) -> Iterator[None]:
        before, self._unchanged = self._unchanged, keys
        try:
            yield
        finally:
            self._unchanged = before

    def on_access(self, handles: Sequence[Any]) -> None:
        """See `AccessObserver`."""
        for key in {int(handle._id) for handle in handles} - self._unchanged:
            self._digests.pop(key, None)


@STATE.value(on_reset=OnReset.DISCARD)  # with the observers of variables
def _value_digests() -> _ValueDigests:
    return _ValueDigests()
