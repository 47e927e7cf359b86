"""Guards of computations that fail on one rank."""

from typing import Any

import pytest
import tensorflow as tf

from tf_libra.model_parallel.partition.guarded_calls import active_guard, guarded_calls


def fail(error: BaseException) -> list[Any]:
    raise error


def outputs_of(*specs: tf.TensorSpec) -> list[Any]:
    concrete = tf.function(lambda *tensors: tensors).get_concrete_function(*specs)
    return list(concrete.outputs)


def test_results_of_failed_computations_are_zeros_and_the_first_error_is_raised() -> None:
    outputs = outputs_of(tf.TensorSpec([2, 3]), tf.TensorSpec([None], tf.int64))
    first = tf.errors.ResourceExhaustedError(None, None, "no memory")
    with guarded_calls() as guard:
        assert active_guard() is guard
        assert guard.call(lambda: [1], outputs) == [1]
        guard.check()
        numbers, unknown = guard.call(lambda: fail(first), outputs)
        guard.call(lambda: fail(ValueError("later")), outputs)
    assert active_guard() is None
    assert numbers.shape == (2, 3) and numbers.dtype == tf.float32 and not numbers.numpy().any()
    assert unknown.shape == (0,) and unknown.dtype == tf.int64
    with pytest.raises(tf.errors.ResourceExhaustedError, match="no memory"):
        guard.check()


@pytest.mark.parametrize(
    ("error", "spec"),
    [
        (RuntimeError(), tf.TensorSpec([])),
        (ValueError(), tf.TensorSpec([], tf.variant)),
        (TypeError(), tf.TensorSpec(None)),
    ],
)
def test_other_errors_and_results_without_zeros_are_not_guarded(
    error: Exception, spec: tf.TensorSpec
) -> None:
    """A signal handler of the script may raise anything."""
    with guarded_calls() as guard, pytest.raises(type(error)):
        guard.call(lambda: fail(error), outputs_of(spec))
    assert guard.error is None and active_guard() is None
