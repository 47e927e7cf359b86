"""Values that a step reads and nothing trains, which the script of each rank may choose.

Examples are weights of a rank's own examples, or its data in a captured tensor. Under data
parallelism each rank computes with its own values, under other strategies one rank's count for all.
"""

import contextlib
import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from tf_libra.internal.process_state import STATE, OnReset
from tf_libra.runtime.concrete_traces import KnownTrace
from tf_libra.runtime.step_tracer import StepCall
from tf_libra.variable_sync.bound_variables import BoundVariable
from tf_libra.variable_sync.sharded_variables import shard_registry
from tf_libra.variable_sync.step_variables import StepVariables
from tf_libra.variable_sync.variable_access import variable_access


def trace_key(arguments: Any) -> Hashable | None:
    """Returns a key that is equal for arguments of the same trace only; None if there is none.

    Only tensors, arrays and Python values in lists, tuples and dictionaries have a key: to find the
    trace of others takes TensorFlow longer.
    """
    if isinstance(arguments, tf.Tensor | np.ndarray | np.generic):
        is_opaque = arguments.dtype in (tf.resource, tf.variant)
        return None if is_opaque else (arguments.dtype, tuple(arguments.shape))
    if arguments is None or isinstance(arguments, bool | int | float | str):
        return type(arguments), arguments
    if type(arguments) is dict:
        names, values = tuple(arguments), list(arguments.values())
    elif type(arguments) in (tuple, list):
        names, values = (), arguments
    else:
        return None
    keys = tuple(map(trace_key, values))
    return None if None in keys else (type(arguments), names, keys)


class ChosenValues:
    """Chosen values of one training function, whose digests ranks compare."""

    def __init__(self, variables: StepVariables) -> None:
        """Knows no values yet.

        Args:
            variables: variables of the function.
        """
        self._variables = variables
        self._found: WeakKeyDictionary[KnownTrace, Sequence[BoundVariable]] = WeakKeyDictionary()
        self._traces: dict[Hashable, weakref.ref[KnownTrace]] = {}

    def digests(self, call: StepCall, key: Hashable | None = None) -> list[str]:
        """Returns digests of the values that a call reads, in the same order on every rank.

        Values that a decorated function trains on some ranks only are left out: it serves them.

        Args:
            call: the call.
            key: the `trace_key` of its arguments, by which `known_digests` finds its trace.
        """
        found = self._find(call)
        if key is not None:
            self._traces[key] = weakref.ref(call.trace)
        return self._digests(found)

    def known_digests(self, key: Hashable | None) -> list[str] | None:
        """Returns the `digests` of a call with this key; None if there was no such call."""
        trace = self._traces[key]() if key in self._traces else None
        found = None if trace is None else self._found.get(trace)
        return None if found is None else self._digests(found)

    @staticmethod
    def _digests(found: Sequence[BoundVariable]) -> list[str]:
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
