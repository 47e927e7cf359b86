"""Encodings of gradients that an all-reduce cannot sum as they are: sparse and complex ones."""

from typing import Any

import tensorflow as tf

from tf_libra.backends import collective_ops


def gather_rows(slices: tf.IndexedSlices, name: str, function: str, rank: int, size: int) -> Any:
    """Returns all ranks' slices in rank order, divided by the number of ranks.

    As a dense tensor they are the average of the ranks' gradients. Ranks may have different numbers
    of rows. The engine only sums: every rank puts its rows where all other ranks have zeros, so
    sums are exact. That sends twice the bytes of an all-gather, and far fewer than the whole table.

    Args:
        slices: of any number of rows.
        name: of the variable.
        function: the training function.
        rank: of this process.
        size: number of processes.
    """
    # float64 represents integers below 2^53 exactly, and the engine cannot sum integers.
    own = tf.cast(tf.shape(slices.indices)[0], tf.float64) * tf.one_hot(
        rank, size, dtype=tf.float64
    )
    rows = tf.cast(collective_ops.all_reduce(own, f"{name}/rows", function), tf.int32)
    before, after = tf.reduce_sum(rows[:rank]), tf.reduce_sum(rows[rank + 1 :])

    def pad(tensor: Any) -> Any:
        paddings = tf.concat([[[before, after]], tf.zeros([tf.rank(tensor) - 1, 2], tf.int32)], 0)
        return tf.ensure_shape(tf.pad(tensor, paddings), [None, *tensor.shape[1:]])

    indices = collective_ops.all_reduce(
        pad(tf.cast(slices.indices, tf.float64)), f"{name}/indices", function
    )
    values = collective_ops.all_reduce(
        pad(slices.values), f"{name}/values", function, reduction="average"
    )
    return tf.IndexedSlices(
        values, tf.cast(indices, slices.indices.dtype), dense_shape=slices.dense_shape
    )


def as_real(gradient: Any) -> Any:
    """Returns both parts of a complex gradient along a new last dimension; others unchanged.

    Args:
        gradient: a tensor or `IndexedSlices`.
    """
    if not gradient.dtype.is_complex:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return _with_values(gradient, as_real(gradient.values), last=[2])
    return tf.stack([tf.math.real(gradient), tf.math.imag(gradient)], axis=-1)


def as_complex(parts: Any) -> Any:
    """Inverts `as_real` for a complex gradient."""
    if isinstance(parts, tf.IndexedSlices):
        return _with_values(parts, as_complex(parts.values), last=[])
    return tf.complex(parts[..., 0], parts[..., 1])


def _with_values(slices: tf.IndexedSlices, values: Any, last: list[int]) -> tf.IndexedSlices:
    shape = slices.dense_shape
    if shape is not None:
        rank = values.shape.rank - len(last)
        shape = tf.concat([shape[:rank], tf.constant(last, shape.dtype)], axis=0)
    return tf.IndexedSlices(values, slices.indices, dense_shape=shape)
