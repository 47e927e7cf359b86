"""Batches as Keras' iterators give them."""

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf


def take(iterator: Iterable[Any], count: int) -> Iterator[Any]:
    """At most the next `count` batches."""
    if not isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
        yield from (data for _, data in zip(range(count), iterator, strict=False))
        return
    of_workers = isinstance(iterator, tf.distribute.DistributedIterator)
    for _ in range(count):
        batch = _next_of_workers(iterator) if of_workers else iterator.get_next_as_optional()
        if not batch.has_value():
            return
        yield batch.get_value()


# All workers exchange whether there is a batch, which a graph does at less cost.
@tf.function(reduce_retracing=True, autograph=False)
def _next_of_workers(iterator: Any) -> Any:
    return iterator.get_next_as_optional()


def without_optionals(data: Any) -> Any:
    """A batch with None where tf.data, which cannot say that, has an empty `Optional`."""
    return keras.tree.map_structure(
        lambda one: None if isinstance(one, tf.experimental.Optional) else one, data
    )
