"""Complex gradients, as real ones that can be all-reduced: both parts, along a last dimension."""

from typing import Any

import tensorflow as tf


def as_real(gradient: Any) -> Any:
    """The parts of a complex gradient; any other as it is.

    Args:
        gradient: a tensor or `IndexedSlices`.
    """
    if not gradient.dtype.is_complex:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return _slices_like(gradient, as_real(gradient.values), last=[2])
    return tf.stack([tf.math.real(gradient), tf.math.imag(gradient)], axis=-1)


def as_complex(parts: Any) -> Any:
    """Returns the complex tensor that `as_real` has taken apart."""
    if isinstance(parts, tf.IndexedSlices):
        return _slices_like(parts, as_complex(parts.values), last=[])
    return tf.complex(parts[..., 0], parts[..., 1])


def _slices_like(slices: tf.IndexedSlices, values: Any, last: list[int]) -> tf.IndexedSlices:
    shape = slices.dense_shape
    if shape is not None:
        rank = values.shape.rank - len(last)
        shape = tf.concat([shape[:rank], tf.constant(last, shape.dtype)], axis=0)
    return tf.IndexedSlices(values, slices.indices, dense_shape=shape)
