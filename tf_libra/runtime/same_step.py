"""Check that another strategy computes the same step as data parallelism, on the same batch.

A loss that is a sum, or that relates examples to each other, changes variables by other amounts,
and metrics of the joint batch have other values than each rank's own. Averages of rounded numbers
differ a little, so changes of variables are compared as a whole, by the norm of their difference.

A gradient that is zero but for rounding, such as that of a bias before a softmax, differs by as
much as it is worth. So a difference counts only if it exceeds what rounding the weights otherwise
would change: the other strategy repeats the step with weights that are changed in their last bits.
"""

import enum
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tf_libra.capture.finite_check import VariableSnapshot
from tf_libra.planning.allowed_differences import JOINT_RESULTS, describe_allowing
from tf_libra.runtime.protocol import NOTHING_ACCEPTED, AcceptedDifferences
from tf_libra.variable_sync.bound_variables import BoundVariable
from tf_libra.variable_sync.sharded_variables import shard_registry
from tf_libra.variable_sync.variable_access import variable_access

MOST_PERTURBED = 3
"""Most repetitions with changed weights: a single one may differ little by chance."""
NO_CHANGE = "the step that was compared has changed no variable by more than rounding"
"""Reason against a strategy that may compute the same."""

# Largest norm of a difference, relative to the norm of the change, or of a result.
_TOLERANCE = 1e-4
# Largest ratio of a difference to what a repetition with changed weights changes.
_MOST_NOISE = 8.0
# Relative change of these weights, by the least precise dtype of the step. It is some units of the
# dtype, as what long sums round, or one of half precision, whose sums have more.
_PERTURBATION = {
    tf.bfloat16: 2.0**-7,
    tf.float16: 2.0**-10,
    tf.float32: 2.0**-20,
    tf.float64: 2.0**-49,
}
# The same relative to the values themselves: twice the unit to which a dtype rounds them.
_ROUNDING = {
    tf.bfloat16: 2.0**-6,
    tf.float16: 2.0**-9,
    tf.float32: 2.0**-22,
    tf.float64: 2.0**-51,
}
# Least norm of a change, relative to this rounding, that would show other gradients.
_LEAST_CHANGE = 4.0
# Largest ratio of changes that the user allows to differ: gradients of a sum over the examples of
# two ranks are twice those of the mean.
_MOST_SCALE = 2.0**0.5


@dataclass(frozen=True)
class UndoneStep:
    """A step that has run, and whose changes are undone.

    Attributes:
        variables: variables that it may have changed.
        before: their values before it, as it began with them.
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
    start: Callable[[], Iterable[tuple[BoundVariable, Any]]] | None = None,
) -> UndoneStep:
    """Runs a step, and undoes it; all ranks call it.

    Args:
        step: the step.
        synchronize: brings all variables up to date after it.
        together: makes a call, and returns its result once all ranks have made it; raises on all of
            them if it fails on one.
        bound: all variables that the step may change.
        start: returns variables with the values to begin with; None: the present ones.
    """
    variables = [handle for handle in bound if handle.is_variable]
    # Other functions may have trained some of them on other ranks.
    shard_registry().synchronize({variable.key: variable for variable in variables})
    original = together(lambda: VariableSnapshot(variables))

    def begin() -> VariableSnapshot:
        for variable, value in start() if start is not None else ():
            variable.assign(value)
        return VariableSnapshot(variables)

    try:
        before = original if start is None else together(begin)
        start_seconds = time.perf_counter()
        result = step()
        seconds = time.perf_counter() - start_seconds
    except BaseException:
        if start is not None:  # all ranks have undone the step, or the job ends
            with variable_access().unobserved():
                original.restore()
        raise
    try:
        synchronize()
        # No rank undoes the step while a thread of another rank still reads its values.
        after = together(lambda: VariableSnapshot(variables))
    finally:
        original.restore()
    return UndoneStep(variables, before.values, after.values, result, seconds)


def perturb(
    undone: UndoneStep, dtype: tf.DType, number: int
) -> Iterator[tuple[BoundVariable, Any]]:
    """Yields the variables of a step, with values before it whose last bits are changed.

    Args:
        undone: the step.
        dtype: the least precise dtype that it computes with.
        number: number of the repetition, which determines the bits, the same on every rank.
    """
    relative = _PERTURBATION.get(dtype.real_dtype, _PERTURBATION[tf.float32])
    for index, (variable, value) in enumerate(zip(undone.variables, undone.before, strict=True)):
        if variable.trainable and variable.dtype.is_floating:
            signs = tf.random.stateless_uniform(tf.shape(value), [number, index], -1.0, 1.0)
            value = value + tf.cast(tf.sign(signs) * relative, value.dtype) * value
        yield variable, value


class RoundingNoise:
    """Norms of what rounding may change, from repetitions of a step with values of `perturb`.

    Attributes:
        variables: norm of the change of a variable, by its key.
        results: norm of a result, by its number.
    """

    def __init__(self) -> None:
        """Begins without a repetition: nothing changes."""
        self.variables: defaultdict[int, float] = defaultdict(float)
        self.results: defaultdict[int, float] = defaultdict(float)

    def add(self, undone: UndoneStep, repeated: UndoneStep) -> None:
        """Adds a repetition of a step."""
        steps = (undone, repeated)
        values = [step_values for step in steps for step_values in (step.before, step.after)]
        for variable, *of_steps in zip(undone.variables, *values, strict=True):
            if variable.is_number or variable.dtype.is_complex:
                old, new, other_old, other_new = map(_to_numpy, of_steps)
                _raise_to(self.variables, variable.key, _norm(new - old - (other_new - other_old)))
        results = zip(*(tf.nest.flatten(step.result) for step in steps), strict=True)
        for number, (result, other) in enumerate(results):
            if tf.is_tensor(result) and result.dtype != tf.string and result.shape == other.shape:
                _raise_to(self.results, number, _norm(_to_numpy(result) - _to_numpy(other)))


def _raise_to(norms: dict[int, float], key: int, norm: float) -> None:
    norms[key] = max(norms[key], _MOST_NOISE * norm)


def describe_difference(
    undone: UndoneStep,
    result: Any,
    trained_only: bool,
    noise: RoundingNoise,
    accepted: AcceptedDifferences = NOTHING_ACCEPTED,
) -> str:
    """Returns what differs in the step that has run now, in a clause; empty if nothing does.

    Args:
        undone: the other step, on the same batch.
        result: result of the step that has run now.
        trained_only: whether results, and variables that no gradient trains, may differ.
        noise: what may differ by rounding.
        accepted: what may differ otherwise; its weights must change by about as much.
    """
    trained = shard_registry().trained_keys()
    is_trained = shows_gradients = False
    changes, expected_changes = [0.0], [0.0]  # norms of those that may differ
    for variable, *values in zip(undone.variables, undone.before, undone.after, strict=True):
        is_number = variable.is_number or variable.dtype.is_complex
        if not is_number or (trained_only and not variable.trainable):
            continue
        old, new, value = map(_to_numpy, (*values, variable.read_value()))
        expected, rounding = value - old, _rounding(variable.dtype, value)
        if variable.key in accepted.variables and _are_finite_alike(new, value):
            if variable.trainable:
                changes.append(_norm(new - old))
                expected_changes.append(_norm(expected))
        elif not _is_close(new - old, expected, rounding, noise.variables[variable.key]):
            return f"variable {variable.name!r} would change otherwise"
        is_trained |= variable.trainable and variable.key in trained
        # Others may be counters, or learning rates.
        is_continuous = variable.dtype.is_floating or variable.dtype.is_complex
        may_show = is_continuous and (variable.trainable or variable.shape.rank != 0)
        least = max(_LEAST_CHANGE * rounding, 2 * noise.variables[variable.key])
        shows_gradients |= may_show and _norm(expected) > least
    ratio = float(np.linalg.norm(changes)) / (float(np.linalg.norm(expected_changes)) or 1.0)
    if any(expected_changes) and _is_scaled(ratio):
        return (
            f"weights would change {ratio:.2g} times as much, which no allowed difference explains"
        )
    if is_trained and not shows_gradients:
        return NO_CHANGE
    if not trained_only:
        pairs = zip(tf.nest.flatten(undone.result), tf.nest.flatten(result), strict=True)
        for number, (found, wanted) in enumerate(pairs):
            if number in accepted.results:
                continue
            if not _is_equal_result(found, wanted, noise.results[number]):
                allowing = describe_allowing(JOINT_RESULTS)
                return f"result {number} of the step would have another value; {allowing}"
    return ""


def find_scales(
    undone: UndoneStep, noise: RoundingNoise, accepted: AcceptedDifferences
) -> dict[str, float]:
    """Returns how many times as much weights would change, by name, if it is clearly not once.

    Only weights that may differ count. A single step may show this by chance.

    Args:
        undone: the other step, on the same batch as the step that has run now.
        noise: what may differ by rounding.
        accepted: what may differ otherwise.
    """
    scales: dict[str, float] = {}
    for variable, *values in zip(undone.variables, undone.before, undone.after, strict=True):
        if not (variable.trainable and variable.is_number and variable.key in accepted.variables):
            continue
        old, new, value = map(_to_numpy, (*values, variable.read_value()))
        change, expected = _norm(new - old), _norm(value - old)
        least = noise.variables[variable.key] + _rounding(variable.dtype, value)
        ratio = change / max(expected, np.finfo(float).tiny)
        if _norm(new - value) > least and _is_scaled(ratio):
            scales[variable.name] = ratio
    return scales


def _is_scaled(ratio: float) -> bool:
    return not 1 / _MOST_SCALE <= ratio <= _MOST_SCALE


def _to_numpy(value: Any) -> Any:
    """Returns numbers with the largest precision."""
    dtype = tf.complex128 if value.dtype.is_complex else tf.float64
    return tf.cast(value, dtype).numpy()


def _is_equal_result(result: Any, expected: Any, noise: float) -> bool:
    if not tf.is_tensor(result) or result.dtype == tf.string:
        return bool(result is expected or result == expected)
    if result.shape != expected.shape:
        return False
    wanted = _to_numpy(expected)
    return _is_close(_to_numpy(result), wanted, _rounding(expected.dtype, wanted), noise)


def _is_close(found: Any, expected: Any, rounding: float, noise: float) -> bool:
    """Returns whether changes are equal, but for their own rounding and that of values.

    NaN equals NaN.
    """
    if not _are_finite_alike(found, expected):
        return False
    allowed = max(_TOLERANCE * _norm(expected), noise) + rounding
    return _norm((found - expected)[np.isfinite(found)]) <= allowed


def _are_finite_alike(found: Any, expected: Any) -> bool:
    return bool(np.array_equal(np.isfinite(found), np.isfinite(expected)))


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
