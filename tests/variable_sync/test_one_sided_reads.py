"""Values that the training rank answers with, without another rank."""

import weakref
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tf_libra.backends import collective_ops
from tf_libra.variable_sync.one_sided_reads import TrainedVariable, VariableReads


def trained_variable(variable: tf.Variable) -> TrainedVariable:
    """Returns what a step knows of a variable that it trains."""
    handle = variable.handle
    return TrainedVariable(
        0, handle._id, variable.name, variable.dtype, variable.shape, weakref.ref(handle), 0
    )


def test_read_that_fails_takes_the_answers_that_are_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next read of the same name would get an answer that is left."""
    variables = [tf.Variable([number]) for number in (1.0, 2.0, 3.0)]
    handles = [variable.handle for variable in variables]
    reads = VariableReads("step")
    every = enumerate(map(trained_variable, variables))
    reads.end_step(replace(trained, number=number) for number, trained in every)
    error = tf.errors.ResourceExhaustedError(None, None, "no memory")
    start = mock.Mock(side_effect=[tf.constant([4.0]), tf.constant([5.0]), error])
    monkeypatch.setattr(collective_ops, "receive_start", start)
    monkeypatch.setattr(collective_ops, "received", lambda pending: pending)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        reads.fetch(handles)
    assert [reads.is_missing(handle._id) for handle in handles] == [False, False, True]
    values = [tf.raw_ops.ReadVariableOp(resource=h, dtype=tf.float32) for h in handles]
    assert [value.numpy().tolist() for value in values] == [[4.0], [5.0], []]
    reads.forget_all()


def test_synchronized_values_can_be_read_until_the_next_step() -> None:
    """Another rank may still read after the training rank has sent its values to all."""
    variable = tf.Variable([1.0, 2.0])
    trained = trained_variable(variable)
    reads = VariableReads("step")
    with reads.computing([trained]):
        variable.assign([3.0, 4.0])
    reads.forget([trained.key])
    np.testing.assert_array_equal(reads.value(0), [3.0, 4.0])
    with reads.computing([]):
        pass
    with pytest.raises(KeyError):
        reads.value(0)


def test_access_that_a_step_overtakes_has_no_value_from_before_the_step() -> None:
    """Another thread has come to the access before the step, and goes on after it has begun."""
    variable = tf.Variable([1.0, 2.0])
    trained = trained_variable(variable)
    reads = VariableReads("step")
    with reads.computing([trained]):
        lock = reads._values
        begins = mock.MagicMock()
        begins.__enter__.side_effect = lambda: setattr(reads, "_is_computing", True)
        reads._is_computing = False
        reads._values = begins
        reads.on_access([variable.handle])
        reads._values = lock
        variable.assign([3.0, 4.0])
    np.testing.assert_array_equal(reads.value(0), [3.0, 4.0])
