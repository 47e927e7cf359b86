"""Values that the training rank answers with, without another rank."""

import weakref

import numpy as np
import pytest
import tensorflow as tf

from tf_libra.variable_sync.one_sided_reads import TrainedVariable, VariableReads


def test_synchronized_values_can_be_read_until_the_next_step() -> None:
    """Another rank may still read after the training rank has sent its values to all."""
    variable = tf.Variable([1.0, 2.0])
    handle = variable.handle
    trained = TrainedVariable(
        0, handle._id, variable.name, variable.dtype, variable.shape, weakref.ref(handle), 0
    )
    reads = VariableReads("step")
    with reads.computing([trained]):
        variable.assign([3.0, 4.0])
    reads.forget([trained.key])
    np.testing.assert_array_equal(reads.value(0), [3.0, 4.0])
    with reads.computing([]):
        pass
    with pytest.raises(KeyError):
        reads.value(0)
