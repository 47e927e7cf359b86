"""Digests of buffers; two real ranks compare theirs in `test_initial_broadcast.py`."""

from typing import cast

import numpy as np
import pytest
import tensorflow as tf

from tf_libra.coordination.control_plane import Control
from tf_libra.variable_sync.bound_variables import BoundVariable
from tf_libra.variable_sync.buffers import Buffers, digest_sample, untouched


def bound(value: tf.Tensor) -> BoundVariable:
    variable = tf.Variable(value, trainable=False)
    return BoundVariable(0, "buffer", variable.handle, variable.dtype, variable.shape)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_buffers_have_equal_digests_if_their_bits_are_equal(
    dtype: str, shape: tuple[int, ...]
) -> None:
    zeros, ones = tf.zeros(shape, dtype), tf.ones(shape, dtype)
    assert digest_sample(bound(zeros)) == digest_sample(bound(zeros))
    assert digest_sample(bound(zeros)) != digest_sample(bound(ones))


def test_shape_and_dtype_count() -> None:
    kinds = [tf.zeros([6]), tf.zeros([2, 3]), tf.zeros([6], tf.int32), tf.zeros([0])]
    assert len({digest_sample(bound(kind)) for kind in kinds}) == 4


def test_large_buffer_is_sampled_over_all_of_it() -> None:
    values = np.zeros([1 << 11, 1 << 10], np.float32)
    digests = [digest_sample(bound(tf.constant(values)))]
    for rows in (slice(0, 9), slice(1000, 1009), slice(-9, None)):
        changed = values.copy()
        changed[rows] = 1
        digests.append(digest_sample(bound(tf.constant(changed))))
    assert len(set(digests)) == 4


class TwoRanks:
    """A control plane whose rank 0 states its buffers, and this rank is rank 1."""

    def __init__(self, first: dict[str, str]) -> None:
        self.first = first

    def all_gather(self, message: dict[str, str]) -> list[dict[str, str]]:
        return [self.first, message]


def differing(first: dict[str, float], own: dict[str, float]) -> list[str]:
    def weights(values: dict[str, float]) -> list[tf.Variable]:
        return [tf.Variable([value], trainable=False, name=name) for name, value in values.items()]

    def digests(values: list[tf.Variable]) -> dict[str, str]:
        return {variable.name: digest_sample(variable) for variable in untouched((), values)}

    control = cast(Control, TwoRanks(digests(weights(first))))
    return Buffers().find_differing(control, (), {}, weights(own))


def test_buffers_are_compared_under_names_that_keras_has_numbered_otherwise() -> None:
    first = {"norm/mean": 1.0, "norm_1/mean": 2.0}
    assert differing(first, {"norm_1/mean": 1.0, "norm_2/mean": 2.0}) == []
    assert len(differing(first, {"norm_1/mean": 1.0, "norm_2/mean": 3.0})) == 1
