"""The weight of a rank's gradients."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_libra.capture.gradient_weight import GradientWeight, gradient_weight, is_joined, is_weighted

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128]


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_multiplied(dtype: tf.DType) -> None:
    weight = GradientWeight()
    gradient = tf.cast(tf.constant([1.0, -2.0]), dtype)
    apply = tf.function(weight.apply)
    for factor, has_batch in ((1.0, True), (1.5, True), (0.0, False)):
        weight.join(3, 2 if factor == 1.5 else 3, has_batch)
        product = apply(gradient)
        assert product.dtype == dtype
        np.testing.assert_array_equal(tf.cast(product, "complex64"), [factor, -2 * factor])


def test_rows_are_multiplied() -> None:
    weight = GradientWeight()
    weight.join(4, 1, has_batch=True)
    product = weight.apply(tf.IndexedSlices(tf.ones([2, 3]), [5, 1], [7, 3]))
    np.testing.assert_array_equal(product.values, np.full([2, 3], 4.0))
    np.testing.assert_array_equal(product.indices, [5, 1])
    np.testing.assert_array_equal(product.dense_shape, [7, 3])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_product_with_zero_is_zero(value: float) -> None:
    weight = GradientWeight()
    weight.join(2, 1, has_batch=False)
    assert float(weight.apply(tf.constant(value))) == 0
    weight.join(2, 1, has_batch=True)
    assert not np.isfinite(weight.apply(tf.constant(value)))


def test_steps_are_weighted_if_a_rank_has_no_batch() -> None:
    def state() -> Any:
        return is_joined(), is_weighted()

    gradient_weight.discard()
    assert state() == (False, False)
    weight = gradient_weight()
    for num_batches, has_batch, is_unequal in ((2, True, False), (1, True, True), (1, False, True)):
        weight.join(2, num_batches, has_batch)
        assert state() == (True, is_unequal)
    weight.leave()
    assert state() == (False, False)
