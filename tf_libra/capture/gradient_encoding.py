"""Encodings of gradients that an all-reduce cannot sum as they are: sparse and complex ones."""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.backends import collective_ops

WIRE_ID = tf.float64
"""Dtype of ids on the wire: the engine carries no integers, and these are exact below 2^53."""

_EXACT = 2**53


@dataclass(frozen=True)
class RowExchange:
    """Exchange of the rows of one sparse gradient, of which ranks may have different numbers.

    Rows travel in the way that sends less, chosen in every step: every rank sends its rows to every
    other, or an all-reduce adds them. Numbers of rows and ids are known before backward, and are
    exchanged first, so that gathered rows wait for nothing but their own production.

    Attributes:
        name: of the variable.
        function: the training function.
        size: number of processes.
        is_planned: whether plans include the rows.
    """

    name: str
    function: str
    size: int
    is_planned: bool = False

    def gather(self, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        """Returns all ranks' rows in rank order, divided by the number of ranks.

        Every occurrence of an id stays a row of its own, as in one process on the joint batch:
        some optimizers treat two rows of an id differently from their sum.
        """
        counts, ids = self._gather_ids(slices.indices, slices.dense_shape)
        with tf.control_dependencies([ids]):  # small, and there early: not behind the rows
            ends = tf.cumsum(counts)
        rows = collective_ops.all_reduce(
            slices.values, self.name, self.function, "average", ends, is_planned=self.is_planned
        )
        return self._slices(rows, ids, slices)

    def average(self, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        """Returns the average of all ranks' rows: each id that a rank has once, ascending.

        A rank adds its rows of the same id before it sends them. Then terms are added in rank
        order, so the average has the bits of the dense average but for signs of zeros. Added rows
        are never more than the whole table. Gathered or added, it is one all-reduce, so that no
        branch parts the ranks.
        """
        own_ids, positions = tf.unique(slices.indices)
        num_own = tf.size(own_ids)
        counts, all_ids = self._gather_ids(own_ids, slices.dense_shape)
        ids = tf.unique(tf.sort(all_ids)).y
        num_rows = tf.size(ids)
        is_added = self.size * tf.reduce_max(counts) >= 2 * num_rows
        # Added rows are all that any rank has, in the order of the result.
        places = tf.where(is_added, tf.searchsorted(ids, own_ids), tf.range(num_own))
        rows = collective_ops.all_reduce(
            tf.math.unsorted_segment_sum(
                slices.values, tf.gather(places, positions), tf.where(is_added, num_rows, num_own)
            ),
            self.name,
            self.function,
            "average",
            tf.cumsum(counts),
            tf.cast(is_added, tf.int32),
            self.is_planned,
        )
        ids_of_rows = tf.concat([all_ids, ids], 0)[tf.where(is_added, tf.size(all_ids), 0) :]
        exact = _summed_in(rows.dtype)
        sums = tf.math.unsorted_segment_sum(
            tf.cast(rows, exact), tf.searchsorted(ids, ids_of_rows[: tf.shape(rows)[0]]), num_rows
        )
        divisor = tf.cast(tf.where(is_added, 1, self.size), exact)
        return self._slices(tf.cast(sums / divisor, rows.dtype), ids, slices)

    def _gather_ids(self, own: Any, dense_shape: Any) -> tuple[Any, Any]:
        """Returns the number of rows of each rank, and all ids in rank order.

        Other ranks' numbers are checked before anything is allocated or indexed by them. Ids below
        zero pass, as in one process: some ops ignore them, and others raise an error.
        """
        name = f"of rows of {self.name!r}"
        mine = tf.cast([tf.shape(own)[0]], WIRE_ID)
        counts = self._gather(mine, tf.ones([self.size], tf.int32), "counts")
        counts = from_wire(counts, tf.int32, 0, tf.int32.max // self.size, f"numbers {name}")
        ids = self._gather(tf.cast(own, WIRE_ID), counts, "indices")
        last = min(own.dtype.max, _EXACT)
        if dense_shape is not None:
            last = tf.minimum(tf.cast(dense_shape[0], WIRE_ID) - 1, last)
        return counts, from_wire(ids, own.dtype, max(own.dtype.min, -_EXACT), last, f"ids {name}")

    def _gather(self, own: Any, counts: Any, what: str) -> Any:
        """Returns the entries of all ranks in rank order, of which each has `counts`."""
        return collective_ops.all_reduce(
            own, f"{self.name}/{what}", self.function, ends=tf.cumsum(counts)
        )

    def _slices(self, values: Any, ids: Any, like: tf.IndexedSlices) -> tf.IndexedSlices:
        values = tf.ensure_shape(values, [None, *like.values.shape[1:]])
        return tf.IndexedSlices(values, ids, dense_shape=like.dense_shape)


def from_wire(numbers: Any, dtype: tf.DType, first: Any, last: Any, what: str) -> Any:
    """Returns integers that ranks have sent as `WIRE_ID`, cast to their own dtype.

    Args:
        numbers: of all ranks, shape [N].
        dtype: an integer dtype.
        first: least allowed integer.
        last: greatest allowed integer.
        what: name of the numbers in the error.

    Raises:
        tf.errors.InvalidArgumentError: in the step, if one of them is no such integer.
    """
    first, last = (tf.convert_to_tensor(limit, WIRE_ID) for limit in (first, last))
    allowed = tf.clip_by_value(tf.floor(numbers), first, last)
    rejected = tf.where(tf.not_equal(allowed, numbers))  # NaN among them
    shown = tf.strings.as_string(tf.gather_nd(numbers, rejected), precision=17, shortest=True)
    check = tf.raw_ops.Assert(
        condition=tf.equal(tf.size(rejected), 0),
        data=[f"{what} must be integers from", first, "to", last, "got", shown],
    )
    with tf.control_dependencies([] if check is None else [check]):  # None: it has run
        return tf.cast(numbers, dtype)


def _summed_in(dtype: tf.DType) -> tf.DType:
    """Returns the dtype in which the engine adds and divides elements."""
    return tf.float32 if dtype.size < tf.float32.size else dtype


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
