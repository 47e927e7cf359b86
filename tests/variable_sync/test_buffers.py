"""Digests of buffers; two real ranks compare theirs in `test_initial_broadcast.py`."""

import numpy as np
import pytest
import tensorflow as tf

from tf_libra.variable_sync.bound_variables import BoundVariable
from tf_libra.variable_sync.buffers import digest_sample


def held(value: tf.Tensor) -> BoundVariable:
    variable = tf.Variable(value, trainable=False)
    return BoundVariable(0, "buffer", variable.handle, variable.dtype, variable.shape)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_buffers_have_equal_digests_if_their_bits_are_equal(
    dtype: str, shape: tuple[int, ...]
) -> None:
    zeros, ones = tf.zeros(shape, dtype), tf.ones(shape, dtype)
    assert digest_sample(held(zeros)) == digest_sample(held(zeros))
    assert digest_sample(held(zeros)) != digest_sample(held(ones))


def test_shape_and_dtype_count() -> None:
    kinds = [tf.zeros([6]), tf.zeros([2, 3]), tf.zeros([6], tf.int32), tf.zeros([0])]
    assert len({digest_sample(held(one)) for one in kinds}) == 4


def test_large_buffer_is_sampled_over_all_of_it() -> None:
    values = np.zeros([1 << 11, 1 << 10], np.float32)
    digests = [digest_sample(held(tf.constant(values)))]
    for rows in (slice(0, 9), slice(1000, 1009), slice(-9, None)):
        changed = values.copy()
        changed[rows] = 1
        digests.append(digest_sample(held(tf.constant(changed))))
    assert len(set(digests)) == 4
