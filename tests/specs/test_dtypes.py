"""Sizes of dtypes, against TensorFlow's own."""

import pytest
import tensorflow as tf

from tf_libra.specs.dtypes import _ITEM_BYTES, item_bytes


@pytest.mark.parametrize("name", _ITEM_BYTES)
def test_is_the_size_that_tensorflow_says(name: str) -> None:
    assert item_bytes(name) == tf.as_dtype(name).size


@pytest.mark.parametrize("name", [None, "string", "resource", "no such"])
def test_what_has_no_size_is_not_known(name: str | None) -> None:
    assert item_bytes(name) is None
