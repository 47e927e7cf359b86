"""Batches are taken from iterators of all kinds, and none that another reader is to get."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_libra.keras.multi_worker_fit import take, without_optionals


def of_workers(count: int) -> Any:
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    return iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(count)))


KINDS: dict[str, Callable[[int], Iterable[Any]]] = {
    "Python's": lambda count: iter(range(count)),
    "tf.data's": lambda count: iter(tf.data.Dataset.range(count)),
    "a strategy's": of_workers,
}


@pytest.mark.parametrize("kind", KINDS)
def test_take_yields_at_most_the_requested_number(kind: str) -> None:
    iterator = KINDS[kind](5)
    taken = [[int(element) for element in take(iterator, count)] for count in (2, 1, 0, 9, 1)]
    assert taken == [[0, 1], [2], [], [3, 4], []]


def test_batches_are_fetched_on_request() -> None:
    """Else what an epoch would begin with is computed before the last has ended."""
    made: list[int] = []
    iterator = (made.append(index) or index for index in range(5))  # type: ignore[func-returns-value]
    taking = take(iterator, 3)
    assert made == []
    next(taking)
    assert made == [0]


def test_an_empty_optional_is_none() -> None:
    """Keras' adapters pass an empty optional for weights that are not passed."""
    dataset = tf.data.Dataset.from_tensors((np.ones([2, 3]), {"weights": None, "y": 1}))
    [(x, others)] = dataset
    empty = tf.experimental.Optional.empty(tf.TensorSpec([]))
    found = without_optionals((x, {"weights": empty, "y": others["y"]}))
    assert found[0] is x and found[1]["weights"] is None and found[1]["y"] == 1
