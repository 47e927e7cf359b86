"""Variables that one call of a trace can touch, identified by their handles.

Names do not identify a variable: two models may use the same, and variables may be arguments.
"""

import fnmatch
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tf_libra.capture.variables import (
    find_value,
    handles,
    is_own_by_strategy,
    is_random_state,
    plain,
    variable_name,
)
from tf_libra.coordination.control_plane import Control
from tf_libra.internal import tf_internal

# Broadcast messages are at most 64 MiB.
_PIECE_BYTES = 32 << 20


@dataclass(frozen=True, eq=False)
class BoundVariable:
    """A variable, or a captured tensor, that is an input of a trace.

    Attributes:
        index: index of the graph's input.
        name: name, unique among the inputs of one call.
        tensor: handle of the variable, or the captured tensor.
        dtype: dtype of the value.
        shape: static shape of the value.
        trainable: whether the variable was created trainable.
        is_random_state: whether it is the state of a random generator.
        is_variable: False for a captured tensor.
        is_own: whether a strategy of TensorFlow makes it rank-local, or would add up the ranks'
            values: it belongs to a metric.
    """

    index: int
    name: str
    tensor: Any
    dtype: tf.DType
    shape: tf.TensorShape
    trainable: bool = False
    is_random_state: bool = False
    is_variable: bool = True
    is_own: bool = False

    @property
    def key(self) -> int:
        """Identity of the variable in this process, never reused."""
        return int(self.tensor._id)

    @property
    def kind(self) -> str:
        """Dtype and shape as text."""
        return f"{self.dtype.name} {self.shape}"

    @property
    def is_number(self) -> bool:
        """Returns whether the value consists of numbers, which can be compared."""
        return bool(self.dtype.is_floating or self.dtype.is_integer or self.dtype.is_bool)

    def read_value(self) -> Any:
        """Returns the present value."""
        if not self.is_variable:
            return self.tensor
        return tf.raw_ops.ReadVariableOp(resource=self.tensor, dtype=self.dtype)

    def assign(self, value: Any) -> None:
        """Assigns another value."""
        tf.raw_ops.AssignVariableOp(
            resource=self.tensor, value=tf.convert_to_tensor(value, self.dtype)
        )

    def digest(self) -> str:
        """Returns a digest of the value's dtype, shape and bits."""
        value = np.asarray(self.read_value().numpy())
        digest = hashlib.blake2b(f"{value.dtype} {value.shape} ".encode(), digest_size=16)
        digest.update(np.ascontiguousarray(value).view(np.uint8).data if value.size else b"")
        return digest.hexdigest()


def bound_variables(concrete: Any, arguments: Sequence[Any]) -> tuple[BoundVariable, ...]:
    """Returns all variables that a call can touch, and the tensors that its trace has captured.

    They are in the order of the graph's inputs, which the program determines: the same on every
    rank.

    Args:
        concrete: the trace, as TensorFlow's concrete function.
        arguments: arguments of the call, from `flat_arguments`.
    """
    captured = captures(concrete)
    known = {
        id(handle): item
        for item in [*concrete.graph.variables, *_variables(arguments)]
        for handle in handles(item)
    }
    passed = [handles(item)[0] if isinstance(item, tf.Variable) else item for item in arguments]
    assert len(passed) + len(captured) == len(concrete.inputs), (len(passed), len(captured))
    found: list[BoundVariable] = []
    taken: set[str] = set()
    for index, tensor in enumerate([*passed, *captured]):
        if not isinstance(tensor, tf_internal.EagerTensor):
            continue
        item = _bound_variable(
            index, tensor, known.get(id(tensor)), is_captured=index >= len(passed)
        )
        if item is not None:
            found.append(_renamed(item, taken))
    return tuple(found)


def captures(concrete: Any) -> list[Any]:
    """Returns the tensors that a trace has captured, in the order of its inputs.

    An entry is None if a callable provides it for each call. Keys of a strategy's collectives are
    such entries: each is valid once, so that reading a key would use it up.
    """
    found: list[Any] = []
    for item in concrete._captured_inputs:
        if not callable(item):
            found.extend(tf.nest.flatten(item, expand_composites=True))
    return found + [None] * (_num_captured(concrete) - len(found))


def _num_captured(concrete: Any) -> int:
    deferred = tf.nest.flatten(concrete.graph.deferred_internal_captures, expand_composites=True)
    return len(concrete.graph.external_captures) + len(deferred)


def _bound_variable(
    index: int, tensor: Any, variable: Any, is_captured: bool
) -> BoundVariable | None:
    if variable is not None:
        return BoundVariable(
            index,
            variable_name(variable),
            tensor,
            variable.dtype,
            variable.shape,
            bool(variable.trainable),
            is_random_state(variable),
            is_own=is_own_by_strategy(tensor) or variable.aggregation is tf.VariableAggregation.SUM,
        )
    if tensor.dtype != tf.resource:
        if not is_captured:
            return None
        return BoundVariable(index, "tensor", tensor, tensor.dtype, tensor.shape, is_variable=False)
    value = find_value(tensor)
    if value is None:
        return None
    shape, dtype = tf.TensorShape(value.shape), tf.as_dtype(value.dtype)
    return BoundVariable(index, "variable", tensor, dtype, shape, trainable=True)


def _renamed(item: BoundVariable, taken: set[str]) -> BoundVariable:
    name, copies = item.name, 0
    while name in taken:
        copies += 1
        name = f"{item.name}#{copies}"
    taken.add(name)
    return BoundVariable(**{**item.__dict__, "name": name})


def _variables(arguments: Iterable[Any]) -> Iterator[Any]:
    return (item for item in arguments if isinstance(item, tf.Variable))


def flat_arguments(function: Any, concrete: Any, args: Any, kwargs: Any) -> list[Any]:
    """Returns the inputs of a trace that are not captured, for one call.

    Variables among the arguments are returned as such, other resources as handles. Other inputs may
    be placeholders.

    Args:
        function: the `tf.function`.
        concrete: its trace for these arguments.
        args: positional arguments of the call.
        kwargs: keyword arguments.
    """
    count = len(concrete.inputs) - _num_captured(concrete)
    if not any(item.dtype == tf.resource for item in concrete.inputs[:count]):
        return [None] * count  # the usual case
    bound = tf_internal.canonicalize_function_inputs(
        args, kwargs, function._function_type, function._default_values, function._is_pure
    )
    flat = concrete.function_type.unpack_inputs(
        concrete.function_type.bind(*bound.args, **bound.kwargs)
    )
    variables = {
        id(handle): plain(item)
        for item in tf.nest.flatten((bound.args, bound.kwargs))
        if isinstance(plain(item), tf.Variable)
        for handle in handles(plain(item))
    }
    return [variables.get(id(item), item) for item in flat]


def matches(item: BoundVariable, local: Sequence[Any]) -> bool:
    """Returns whether the user has listed a variable, by pattern or as an object."""
    return is_named(item.name, [item.tensor], local)


def is_named(name: str, tensors: Sequence[Any], local: Sequence[Any]) -> bool:
    """Returns whether `local` has a variable of this name or with one of these handles."""
    base = name.partition("#")[0]
    for pattern in local:
        if isinstance(pattern, str):
            if fnmatch.fnmatchcase(base, pattern) or fnmatch.fnmatchcase(name, pattern):
                return True
        elif any(handle is item for handle in handles(plain(pattern)) for item in tensors):
            return True
    return False


def broadcast(control: Control, variable: BoundVariable) -> None:
    """Copies rank 0's value to every other rank, over the control plane.

    Raises:
        EngineError: a rank is gone.
    """
    value = np.asarray(variable.read_value().numpy())
    shape = control.broadcast(list(value.shape))
    size = int(np.prod(shape, dtype=np.int64)) * value.dtype.itemsize
    payload = value.tobytes() if control.rank == 0 else b""
    received = b"".join(
        control.broadcast_bytes(payload[at : at + _PIECE_BYTES])
        for at in range(0, size, _PIECE_BYTES)
    )
    if control.rank != 0:
        variable.assign(np.frombuffer(received, value.dtype).reshape(shape))
