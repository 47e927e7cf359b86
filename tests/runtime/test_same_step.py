"""Comparison of a step of another strategy with one of data parallelism."""

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from tf_libra.runtime import same_step
from tf_libra.variable_sync.bound_variables import BoundVariable


def difference(
    monkeypatch: pytest.MonkeyPatch, value: float, change: float, ratio: float, dtype: Any
) -> str:
    """Returns the difference if the other step has changed a weight by a ratio of the change."""
    weight = tf.Variable(tf.fill([8], tf.constant(value, dtype)))
    count = tf.Variable(1)
    bound = [
        BoundVariable(0, "weight", weight.handle, weight.dtype, weight.shape, trainable=True),
        BoundVariable(1, "count", count.handle, count.dtype, count.shape),
    ]
    keys = {variable.key for variable in bound}
    registry = SimpleNamespace(trained_keys=lambda: keys)
    monkeypatch.setattr(same_step, "shard_registry", lambda: registry)
    before = [weight.read_value(), count.read_value()]
    after = [weight + tf.cast(ratio * change, dtype), tf.constant(2)]
    weight.assign_add(tf.fill([8], tf.cast(change, dtype)))
    count.assign(2)
    undone = same_step.UndoneStep(bound, before, after, None, 1.0)
    return same_step.describe_difference(undone, None, False, same_step.RoundingNoise())


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.bfloat16, tf.complex64])
def test_changes_that_are_equal_but_for_rounding_are_no_difference(
    monkeypatch: pytest.MonkeyPatch, dtype: Any
) -> None:
    assert not difference(monkeypatch, 0.25, 0.5, 1.00001, dtype)


@pytest.mark.parametrize("dtype", [tf.float32, tf.complex64])
@pytest.mark.parametrize(("change", "ratio"), [(1.0, 1.001), (1.0, 2.0), (1e-4, 2.0), (3e-6, 2.0)])
def test_other_changes_are_a_difference_even_if_weights_hardly_change(
    monkeypatch: pytest.MonkeyPatch, change: float, ratio: float, dtype: Any
) -> None:
    """A learning rate may be small. The gradient of a sum is twice that of the mean."""
    assert "'weight' would change otherwise" in difference(monkeypatch, 0.1, change, ratio, dtype)


@pytest.mark.parametrize("change", [0.0, 1e-9])
def test_step_without_changes_shows_nothing(monkeypatch: pytest.MonkeyPatch, change: float) -> None:
    """A learning rate may be 0 at first; only the count of steps has changed."""
    found = difference(monkeypatch, 0.1, change, 2.0, tf.float32)
    assert "no variable by more than rounding" in found
