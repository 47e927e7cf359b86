"""Observers are called before accesses of variables, by every means that can be observed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tf_libra.internal import patches
from tf_libra.variable_sync.variable_access import VariableAccess


class Observer:
    """Records accesses, or raises an error."""

    def __init__(self) -> None:
        self.accessed: list[list[int]] = []
        self.error: Exception | None = None

    def on_access(self, handles: Sequence[Any]) -> None:
        if self.error is not None:
            raise self.error
        self.accessed.append([handle._id for handle in handles])


@pytest.fixture
def access() -> Iterator[VariableAccess]:
    access = VariableAccess()
    yield access
    access.close()


def key(variable: tf.Variable) -> int:
    return int(vars(variable)["_handle"]._id)


READS: dict[str, Callable[[tf.Variable], Any]] = {
    "numpy": lambda variable: variable.numpy(),
    "operator": lambda variable: variable + 1.0,
    "op": lambda variable: tf.raw_ops.AddV2(x=variable, y=[1.0, 1.0]),
    "gather": lambda variable: tf.gather(variable, [0]),
    "repr": repr,
    "assign": lambda variable: variable.assign([1.0, 2.0]),
}


@pytest.mark.parametrize("name", ["numpy", "operator", "read_value"])
def test_read_that_finds_a_freed_value_reads_again(access: VariableAccess, name: str) -> None:
    """A step in another thread frees the value after the observer has fetched it."""
    variable, values = tf.Variable([1.0, 2.0]), [[], [], [3.0, 4.0]]

    class Racing(Observer):
        def on_access(self, handles: Sequence[Any]) -> None:
            super().on_access(handles)
            for handle in handles:
                value = values.pop(0) if len(values) > 1 else values[0]
                tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(value, tf.float32))

    observer = Racing()
    access.observe([key(variable)], observer)
    read = {**READS, "read_value": lambda variable: variable.read_value()}[name]
    expected = [4.0, 5.0] if name == "operator" else [3.0, 4.0]
    assert np.asarray(read(variable)).tolist() == expected
    assert len(observer.accessed) >= 3


def test_read_that_finds_a_part_reads_again_unless_it_is_unobserved(
    access: VariableAccess,
) -> None:
    """A step in another thread keeps the own part alone after the observer has fetched all."""
    variable, value = tf.Variable([1.0, 2.0]), tf.constant([1.0, 2.0])
    part = tf.errors.InvalidArgumentError(None, None, "the variable has dtype variant")
    original = mock.Mock(side_effect=[part, part, value, part])
    read = access._reading(original)
    assert read(variable) is value
    with access.unobserved(), pytest.raises(tf.errors.InvalidArgumentError):
        read(variable)
    assert original.call_count == 4


@pytest.mark.parametrize("name", READS)
def test_eager_access_is_observed_until_it_is_forgotten(access: VariableAccess, name: str) -> None:
    variable, observer = tf.Variable([1.0, 2.0]), Observer()
    access.observe([key(variable)], observer)
    READS[name](tf.Variable([1.0, 2.0]))
    assert observer.accessed == []
    READS[name](variable)
    assert [key(variable)] in observer.accessed
    observer.accessed.clear()
    with access.unobserved():
        READS[name](variable)
    access.forget([key(variable)])
    READS[name](variable)
    assert observer.accessed == []


def test_call_of_a_function_is_one_access_of_all_that_it_has_captured(
    access: VariableAccess,
) -> None:
    first, second, observer = tf.Variable(1.0), tf.Variable(2.0), Observer()
    add = tf.function(lambda: first + second)
    access.observe(map(key, (first, second)), observer)
    add.get_concrete_function()
    assert observer.accessed == []
    assert add().numpy() == 3
    assert sorted(observer.accessed[0]) == sorted(map(key, (first, second)))
    with tf.GradientTape() as tape:
        total = add()
    assert tape.gradient(total, first).numpy() == 1
    assert len(observer.accessed) >= 2


@pytest.mark.parametrize("is_first", [False, True])
def test_functions_of_datasets_name_their_variables_while_they_exist(
    access: VariableAccess, is_first: bool
) -> None:
    variable, other, observer = tf.Variable(1.0), tf.Variable(2.0), Observer()
    dataset = tf.data.Dataset.range(2).map(lambda x: other) if is_first else None
    access.observe([key(variable)], observer)
    if dataset is None:
        dataset = tf.data.Dataset.range(2).map(lambda x: other)
    assert access.captured_by_datasets() == {key(other)}
    assert [float(value) for value in dataset] == [2, 2]
    assert observer.accessed == []


@pytest.mark.parametrize("name", [name for name in READS if name != "repr"])
def test_access_that_cannot_be_prepared_raises(access: VariableAccess, name: str) -> None:
    """An op reads the variable in C++, and raises TensorFlow's own error with the same message."""
    variable, observer = tf.Variable([1.0, 2.0]), Observer()
    observer.error = ValueError("rank 1 is gone")
    access.observe([key(variable)], observer)
    with pytest.raises((ValueError, tf.errors.FailedPreconditionError), match="rank 1 is gone"):
        READS[name](variable)
    access.forget([key(variable)])
    np.testing.assert_array_equal(variable.numpy(), [1, 2])


def test_close_restores_tensorflow(access: VariableAccess) -> None:
    variable = tf.Variable(1.0)
    access.observe([key(variable)], Observer())
    assert patches.VARIABLE_HANDLE.exists()
    access.close()
    assert not patches.VARIABLE_HANDLE.exists()
    assert variable.numpy() == 1
