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

# Largest norm of a difference, relative to the norm of the change, or of a result.
_TOLERANCE = 0.02
# The same relative to the values themselves: rounding, where changes are tiny.
_ROUNDING = 1e-5


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
    wait: Callable[[], object],
    bound: Iterable[BoundVariable],
) -> UndoneStep:
    """Runs a step, and undoes it; all ranks call it.

    Args:
        step: the step.
        synchronize: brings all variables up to date after it.
        wait: returns once all ranks have done so.
        bound: all variables that the step may change.
    """
    variables = [handle for handle in bound if handle.is_variable]
    before = VariableSnapshot(variables)
    start = time.perf_counter()
    result = step()
    seconds = time.perf_counter() - start
    synchronize()
    wait()
    after = VariableSnapshot(variables)
    before.restore()
    return UndoneStep(variables, before.values, after.values, result, seconds)


def describe_difference(undone: UndoneStep, result: Any, trained_only: bool) -> str:
    """Returns what differs in the step that has run now, in a clause; empty if nothing does.

    Args:
        undone: the other step, on the same batch.
        result: result of the step that has run now.
        trained_only: whether results, and variables that no gradient trains, may differ.
    """
    for variable, *values in zip(undone.variables, undone.before, undone.after, strict=True):
        if not variable.is_number or (trained_only and not variable.trainable):
            continue
        old, new, expected = map(_to_numpy, (*values, variable.read_value()))
        if not _is_close(new - old, expected - old, expected):
            return f"variable {variable.name!r} would change otherwise"
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
    return _is_close(_to_numpy(result), wanted, wanted)


def _is_close(found: Any, expected: Any, values: Any) -> bool:
    """Returns whether changes are equal, to rounding of changes and values; NaN equals NaN."""
    if not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return False
    finite = np.isfinite(found)
    difference = np.linalg.norm((found - expected)[finite])
    limit = _TOLERANCE * np.linalg.norm(expected[finite])
    return bool(
        difference <= limit + _ROUNDING * np.linalg.norm(np.ravel(values)[np.ravel(finite)])
    )


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
