"""Complex gradients, as real ones that can be all-reduced: both parts, along a last dimension."""

from typing import Any

import tensorflow as tf

from tf_libra.backends import collective_ops


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


def gathered(slices: tf.IndexedSlices, name: str, function: str, rank: int, size: int) -> Any:
    """All ranks' slices, one after the other in rank order, divided by their number.

    As a dense tensor they are the average of the ranks' gradients. The ranks may have different
    numbers of rows. Lanes sum: every rank puts its rows where no other rank has any, and adding
    zeros changes none of them. That sends twice the bytes of a gathering, and far fewer than a
    table has.

    Args:
        slices: of any number of rows.
        name: of the variable.
        function: the training function.
        rank: this process.
        size: number of processes.
    """
    # Whole numbers below 2^53 are exact as float64, which lanes can sum and integers they cannot.
    mine = tf.cast(tf.shape(slices.indices)[0], tf.float64) * tf.one_hot(
        rank, size, dtype=tf.float64
    )
    rows = tf.cast(collective_ops.all_reduce(mine, f"{name}/rows", function), tf.int32)
    before, after = tf.reduce_sum(rows[:rank]), tf.reduce_sum(rows[rank + 1 :])

    def in_place(tensor: Any) -> Any:
        dimensions = tf.concat([[[before, after]], tf.zeros([tf.rank(tensor) - 1, 2], tf.int32)], 0)
        padded = tf.pad(tensor, dimensions)
        return tf.ensure_shape(padded, [None, *tensor.shape[1:]])

    indices = collective_ops.all_reduce(
        in_place(tf.cast(slices.indices, tf.float64)), f"{name}/indices", function
    )
    values = collective_ops.all_reduce(
        in_place(slices.values), f"{name}/values", function, reduction="average"
    )
    return tf.IndexedSlices(
        values, tf.cast(indices, slices.indices.dtype), dense_shape=slices.dense_shape
    )
