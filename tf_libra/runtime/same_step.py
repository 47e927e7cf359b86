"""Check that another strategy computes the same step as data parallelism, on the same batch.

Averages of rounded numbers differ a little, so changes of variables are compared as a whole: by the
norm of their difference. A loss that is a sum, or that relates examples to each other, changes
variables by other amounts, and metrics of the joint batch have other values than each rank's own.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_libra.capture.finite_check import VariableSnapshot
from tf_libra.variable_sync.bound_variables import BoundVariable

# Largest norm of a difference, relative to the norm of the change, or of a result.
_TOLERANCE = 0.02
# The same relative to the values themselves: rounding, where changes are tiny.
_ROUNDING = 1e-5


def compare_steps(
    other: Callable[[], Any],
    synchronize: Callable[[], None],
    first: Callable[[], Any],
    variables: Sequence[BoundVariable],
    trained_only: bool,
) -> tuple[Any, str]:
    """Runs a step, undoes it, runs another one, and compares; all ranks call it.

    Args:
        other: the step that is undone.
        synchronize: brings all variables up to date after it.
        first: the step that counts.
        variables: all variables that the steps may change.
        trained_only: whether results, and variables that no gradient trains, may differ.

    Returns:
        The result of the step that counts, and what differs, in a clause; empty if nothing does.
    """
    variables = [variable for variable in variables if variable.is_variable]
    before = VariableSnapshot(variables)
    initial = [variable.read_value() for variable in variables]
    theirs = other()
    synchronize()
    changed = [variable.read_value() for variable in variables]
    before.restore()
    ours = first()
    for variable, *values in zip(variables, initial, changed, strict=True):
        if not variable.is_number or (trained_only and not variable.trainable):
            continue
        old, new, expected = map(_to_numpy, (*values, variable.read_value()))
        if not _is_close(new - old, expected - old, expected):
            return ours, f"variable {variable.name!r} would change otherwise"
    if not trained_only:
        pairs = zip(tf.nest.flatten(theirs), tf.nest.flatten(ours), strict=True)
        for number, (result, expected) in enumerate(pairs):
            if not _is_equal_result(result, expected):
                return ours, f"result {number} of the step would have another value"
    return ours, ""


def time_step(
    step: Callable[[], Any],
    synchronize: Callable[[], None],
    variables: Sequence[BoundVariable],
) -> float:
    """Returns the seconds of a step, and undoes it; all ranks call it.

    Args:
        step: the step, which has run before.
        synchronize: brings all variables up to date after it.
        variables: all variables that the step may change.
    """
    before = VariableSnapshot([variable for variable in variables if variable.is_variable])
    start = time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    synchronize()
    before.restore()
    return seconds


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
