"""Gradients that are not finite: noted in a graph, reported after it; values that are restored."""

import secrets
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_libra.backends import engine as engine_lib
from tf_libra.capture import finite_check

NAMES = ["first", "table", "last"]
BAD = [np.nan, np.inf, -np.inf]


def watched(
    watch: finite_check.FiniteCheck, local: list[Any], reduced: list[Any] | None = None
) -> Any:
    """Notes three gradients in a graph, of which the second is sparse."""

    def sparse(value: Any) -> Any:
        return tf.IndexedSlices(tf.reshape(value, [1, 1]), tf.constant([0]))

    def tensors_of(values: Any) -> list[Any]:
        return [values[0], sparse(values[1]), values[2]]

    @tf.function
    def step(local: Any, reduced: Any) -> None:
        watch.add_to_graph(NAMES, tensors_of(local), tensors_of(reduced))

    return step(*[tf.unstack(tf.constant(part)) for part in (local, reduced or local)])


def test_finite_gradients_leave_nothing_to_tell() -> None:
    watch = finite_check.FiniteCheck()
    watched(watch, [1.0, 2.0, 3.0])
    assert watch.take() == (False, "")


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("index", range(3))
def test_the_first_local_culprit_is_reported_once(index: int, value: float) -> None:
    watch = finite_check.FiniteCheck()
    local = [1.0, 2.0, 3.0]
    local[index] = value
    watched(watch, local)
    later = [value] * 3
    watched(watch, later)
    assert watch.take() == (True, NAMES[index])
    assert watch.take() == (False, "")


def test_invalid_value_of_another_rank_is_found_in_the_average() -> None:
    watch = finite_check.FiniteCheck()
    watched(watch, [1.0, 2.0, 3.0], [1.0, np.nan, 3.0])
    assert watch.take() == (True, "")


def test_invalid_value_that_another_average_hides_does_not_count() -> None:
    """A local overflow that is in no average, such as a gradient that another rank has not."""
    watch = finite_check.FiniteCheck()
    watched(watch, [np.inf, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert watch.take()[0] is False


def test_culprits_in_words() -> None:
    address = engine_lib.listen("127.0.0.1")
    secret = secrets.token_bytes(engine_lib.SECRET_BYTES)
    engine = engine_lib.connect(0, [address], secret, 1, 10.0, 5.0)
    try:
        reported = finite_check.culprits(engine, "table")
        assert reported == "the gradient of 'table' is not finite on rank 0"
        assert finite_check.culprits(engine, "").endswith("but not their sum")
    finally:
        engine.close()


def test_a_snapshot_brings_values_back() -> None:
    variables = [tf.Variable(1.0), tf.Variable([1, 2]), tf.Variable("text")]
    before = [variable.numpy() for variable in variables]
    snapshot = finite_check.VariableSnapshot(variables)

    @tf.function
    def step() -> None:
        variables[0].assign_add(np.nan)
        variables[1].assign([3, 4])
        variables[2].assign("other")

    step()
    snapshot.restore()
    for trained, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(trained.numpy(), value)
