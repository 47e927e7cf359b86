"""Values that the training rank answers with, without another rank."""

import weakref
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tf_libra.variable_sync.one_sided_reads import TrainedVariable, VariableReads


def trained_variable(variable: tf.Variable) -> TrainedVariable:
    """Returns what a step knows of a variable that it trains."""
    handle = variable.handle
    return TrainedVariable(
        0, handle._id, variable.name, variable.dtype, variable.shape, weakref.ref(handle), 0
    )


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


def test_access_that_a_step_overtakes_keeps_no_value_from_before_the_step() -> None:
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
