"""Check that another strategy computes the same step as data parallelism, on the same batch.

Averages of rounded numbers differ a little, so changes of variables are compared as a whole: by the
norm of their difference. A loss that is a sum, or that relates examples to each other, changes
variables by other amounts, and metrics of the joint batch have other values than each rank's own.
"""

import enum
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tf_libra.capture.finite_check import VariableSnapshot
from tf_libra.variable_sync.bound_variables import BoundVariable
from tf_libra.variable_sync.sharded_variables import shard_registry

# Largest norm of a difference, relative to the norm of the change, or of a result.
_TOLERANCE = 0.005
# The same relative to the values themselves: twice the unit to which a dtype rounds them.
_ROUNDING = {
    tf.bfloat16: 2.0**-6,
    tf.float16: 2.0**-9,
    tf.float32: 2.0**-22,
    tf.float64: 2.0**-51,
}
# Least norm of a change, relative to this rounding, that would show other gradients.
_LEAST_CHANGE = 4.0


@dataclass(frozen=True)
class UndoneStep:
    """A step that has run, and whose changes are undone.

    Attributes:
        variables: variables that it may have changed.
        before: their values before it.
        after: their values after it.
        result: its result.
        seconds: how long it took.
    """

    variables: Sequence[BoundVariable]
    before: Sequence[Any]
    after: Sequence[Any]
    result: Any
    seconds: float


def run_undone(
    step: Callable[[], Any],
    synchronize: Callable[[], None],
    together: Callable[[Callable[[], VariableSnapshot]], VariableSnapshot],
    bound: Iterable[BoundVariable],
) -> UndoneStep:
    """Runs a step, and undoes it; all ranks call it.

    Args:
        step: the step.
        synchronize: brings all variables up to date after it.
        together: makes a call, and returns its result once all ranks have made it; raises on all of
            them if it fails on one.
        bound: all variables that the step may change.
    """
    variables = [handle for handle in bound if handle.is_variable]
    # Other functions may have trained some of them on other ranks.
    shard_registry().synchronize({variable.key: variable for variable in variables})
    before = together(lambda: VariableSnapshot(variables))
    start = time.perf_counter()
    result = step()
    seconds = time.perf_counter() - start
    try:
        synchronize()
        # No rank undoes the step while a thread of another rank still reads its values.
        after = together(lambda: VariableSnapshot(variables))
    finally:
        before.restore()
    return UndoneStep(variables, before.values, after.values, result, seconds)


def describe_difference(undone: UndoneStep, result: Any, trained_only: bool) -> str:
    """Returns what differs in the step that has run now, in a clause; empty if nothing does.

    Args:
        undone: the other step, on the same batch.
        result: result of the step that has run now.
        trained_only: whether results, and variables that no gradient trains, may differ.
    """
    trained = shard_registry().trained_keys()
    is_trained = shows_gradients = False
    for variable, *values in zip(undone.variables, undone.before, undone.after, strict=True):
        if not variable.is_number or (trained_only and not variable.trainable):
            continue
        old, new, expected = map(_to_numpy, (*values, variable.read_value()))
        rounding = _rounding(variable.dtype, expected)
        if not _is_close(new - old, expected - old, rounding):
            return f"variable {variable.name!r} would change otherwise"
        is_trained |= variable.trainable and variable.key in trained
        # Others may be counters, or learning rates.
        may_show = variable.dtype.is_floating and (variable.trainable or variable.shape.rank != 0)
        shows_gradients |= may_show and _norm(expected - old) > _LEAST_CHANGE * rounding
    if is_trained and not shows_gradients:
        return "the step that was compared has changed no variable by more than rounding"
    if not trained_only:
        pairs = zip(tf.nest.flatten(undone.result), tf.nest.flatten(result), strict=True)
        for number, (found, expected) in enumerate(pairs):
            if not _is_equal_result(found, expected):
                return f"result {number} of the step would have another value"
    return ""


def _to_numpy(value: Any) -> Any:
    """Returns numbers with the largest precision."""
    dtype = tf.complex128 if value.dtype.is_complex else tf.float64
    return tf.cast(value, dtype).numpy()


def _is_equal_result(result: Any, expected: Any) -> bool:
    if not tf.is_tensor(result) or result.dtype == tf.string:
        return bool(result is expected or result == expected)
    if result.shape != expected.shape:
        return False
    wanted = _to_numpy(expected)
    return _is_close(_to_numpy(result), wanted, _rounding(expected.dtype, wanted))


def _is_close(found: Any, expected: Any, rounding: float) -> bool:
    """Returns whether changes are equal, but for their own rounding and that of values.

    NaN equals NaN.
    """
    finite = np.isfinite(found)
    if not np.array_equal(finite, np.isfinite(expected)):
        return False
    return _norm((found - expected)[finite]) <= _TOLERANCE * _norm(expected) + rounding


def _norm(values: Any) -> float:
    """Returns the norm of those values that are finite."""
    return float(np.linalg.norm(values[np.isfinite(values)]))


def _rounding(dtype: tf.DType, values: Any) -> float:
    """Returns the norm of what storing values in a dtype may round."""
    return _ROUNDING.get(dtype.real_dtype, 0.0) * _norm(values)


def kinds_of_arguments(arguments: Any) -> list[str]:
    """Returns dtype and shape of tensors, and values without examples, as texts for other ranks.

    A tensor without dimensions holds no examples: only the computing rank's value counts.
    """
    return [_kind_of_argument(leaf) for leaf in tf.nest.flatten(arguments, expand_composites=True)]


def _kind_of_argument(leaf: Any) -> str:
    is_array = tf.is_tensor(leaf) or isinstance(leaf, np.ndarray | np.generic)
    if is_array and leaf.dtype not in (tf.resource, tf.variant):
        is_value = not isinstance(leaf, tf.Variable) and leaf.shape == ()
        what = np.asarray(leaf).item() if is_value else tuple(leaf.shape)
        return f"{leaf.dtype.name} {what!r}"
    is_value = leaf is None or isinstance(leaf, bool | int | float | str | enum.Enum | tf.DType)
    return repr(leaf) if is_value else type(leaf).__qualname__
