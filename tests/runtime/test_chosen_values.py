"""Values that ranks may choose: their digests, and the traces that read them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_libra.capture.instrumented_function import Trace
from tf_libra.runtime.chosen_values import ChosenValues, trace_key
from tf_libra.runtime.concrete_traces import KnownTrace
from tf_libra.variable_sync.bound_variables import BoundVariable

ARGUMENTS = (
    (tf.zeros([2, 3]),),
    (tf.zeros([3, 2]),),
    (tf.zeros([2, 3], tf.float64),),
    [tf.zeros([2, 3])],
    (tf.zeros([2, 3]), True),
    (tf.zeros([2, 3]), 1),
    (tf.zeros([2, 3]), 1.0),
    {"x": tf.zeros([2, 3])},
    {"y": tf.zeros([2, 3])},
    (np.zeros([2, 3], np.int32),),
    (tf.zeros([]), None),
    (),
)


def test_only_arguments_of_one_trace_have_the_same_key() -> None:
    keys = [trace_key(arguments) for arguments in ARGUMENTS]
    assert None not in keys and len({*keys}) == len(keys)
    assert trace_key((tf.ones([2, 3]),)) == keys[0]  # other values
    assert trace_key((tf.ones([]), None)) == keys[-2]


@pytest.mark.parametrize(
    "argument",
    [object(), tf.Variable(0.0), tf.ragged.constant([[1], [1, 2]]), iter([1]), {1, 2}],
    ids=lambda argument: type(argument).__name__,
)
def test_other_arguments_have_no_key(argument: Any) -> None:
    assert trace_key((tf.zeros([2]), argument)) is None


def test_a_trace_is_found_again_while_it_exists() -> None:
    """Digests are of the present values."""
    variable = tf.Variable([1.0, 2.0], trainable=False)
    bound = BoundVariable(0, "weights", variable.handle, variable.dtype, variable.shape)
    trace = KnownTrace(Trace((), {}))
    trace._flow = SimpleNamespace()  # type: ignore[assignment]  # it is read from a graph once
    variables = SimpleNamespace(chosen=lambda flow, touched: touched)
    call = SimpleNamespace(
        trace=trace, concrete=None, touched=lambda: (bound,), passed_variables=()
    )
    chosen, key = ChosenValues(variables), trace_key((tf.zeros([2]),))  # type: ignore[arg-type]
    assert chosen.known_digests(key) is None
    first = chosen.digests(call, key)  # type: ignore[arg-type]
    assert chosen.known_digests(key) == first and chosen.known_digests(None) is None
    variable.assign([1.0, 3.0])
    assert chosen.known_digests(key) != first
    del trace, call
    assert chosen.known_digests(key) is None
