"""Complex gradients are taken apart, and put together again."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.capture.traces import traced
from tf_libra.capture.complex_ops import as_complex, as_real


def numbers(*shape: int, dtype: str = "complex64") -> Any:
    random = np.random.default_rng(1)
    return tf.constant(random.normal(size=shape) + 1j * random.normal(size=shape), dtype)


@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3)])
@pytest.mark.parametrize(("dtype", "real"), [("complex64", "float32"), ("complex128", "float64")])
def test_parts_stand_along_a_last_dimension(shape: Any, dtype: str, real: str) -> None:
    gradient = numbers(*shape, dtype=dtype)
    parts = as_real(gradient)
    assert (parts.dtype, parts.shape) == (real, (*shape, 2))
    np.testing.assert_array_equal(as_complex(parts), gradient)


@pytest.mark.parametrize("dense_shape", [None, [5, 3]])
def test_rows_of_a_table_keep_their_indices(dense_shape: Any) -> None:
    shape = None if dense_shape is None else tf.constant(dense_shape)
    gradient = tf.IndexedSlices(numbers(2, 3), tf.constant([4, 1]), shape)
    parts = as_real(gradient)
    again = as_complex(parts)
    np.testing.assert_array_equal(again.values, gradient.values)
    np.testing.assert_array_equal(again.indices, gradient.indices)
    if dense_shape is None:
        assert again.dense_shape is parts.dense_shape is None
    else:
        assert parts.dense_shape.numpy().tolist() == [*dense_shape, 2]
        assert again.dense_shape.numpy().tolist() == dense_shape


def test_real_gradients_are_as_they_are() -> None:
    gradient = tf.ones([2])
    assert as_real(gradient) is gradient


def test_what_is_all_reduced_of_complex_weights_is_real() -> None:
    wave = tf.Variable(numbers(4, 4), name="wave")

    def step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.abs(tf.cast(inputs, tf.complex64) @ wave))
        return tape.gradient(loss, wave)

    trace, found = traced(step)
    assert found == ["wave"]
    assert (trace.marked[0].shape, trace.marked[0].dtype) == ((4, 4, 2), "float32")
