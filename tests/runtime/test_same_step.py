"""Comparison of a step of another strategy with one of data parallelism."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from tf_libra.runtime import same_step
from tf_libra.runtime.protocol import NOTHING_ACCEPTED, AcceptedDifferences
from tf_libra.variable_sync.bound_variables import BoundVariable


def difference(
    monkeypatch: pytest.MonkeyPatch,
    value: float,
    change: float,
    ratio: float,
    dtype: Any,
    accepted: AcceptedDifferences = NOTHING_ACCEPTED,
    returned: float = 0.0,
) -> str:
    """Returns the difference if the other step has changed a weight by a ratio of the change.

    It has returned another number than 0, too.
    """
    weight = tf.Variable(tf.fill([8], tf.constant(value, dtype)))
    count = tf.Variable(1)
    bound = variables(weight, count)
    keys = {variable.key for variable in bound}
    registry = SimpleNamespace(trained_keys=lambda: keys)
    monkeypatch.setattr(same_step, "shard_registry", lambda: registry)
    before = [weight.read_value(), count.read_value()]
    after = [weight + tf.cast(ratio * change, dtype), tf.constant(2)]
    weight.assign_add(tf.fill([8], tf.cast(change, dtype)))
    count.assign(2)
    undone = same_step.UndoneStep(bound, before, after, tf.constant(returned), 1.0)
    if accepted.variables:
        accepted = replace(accepted, variables=frozenset(bound[i].key for i in accepted.variables))
    noise = same_step.RoundingNoise()
    return same_step.describe_difference(undone, tf.constant(0.0), False, noise, accepted)


def variables(weight: tf.Variable, count: tf.Variable) -> list[BoundVariable]:
    return [
        BoundVariable(0, "weight", weight.handle, weight.dtype, weight.shape, trainable=True),
        BoundVariable(1, "count", count.handle, count.dtype, count.shape),
    ]


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


@pytest.mark.parametrize(("ratio", "named"), [(1.2, ""), (0.8, ""), (2.0, "2 times"), (0.5, "0.5")])
def test_weights_that_the_user_lets_differ_must_change_by_about_as_much(
    monkeypatch: pytest.MonkeyPatch, ratio: float, named: str
) -> None:
    """Batch statistics change gradients a little; the gradient of a sum is N times as large."""
    accepted = AcceptedDifferences(frozenset({0}))
    found = difference(monkeypatch, 0.1, 1.0, ratio, tf.float32, accepted)
    assert bool(found) is bool(named) and named in found


@pytest.mark.parametrize("ratio", [0.5, 0.8, 1.2, 2.0])
def test_small_weight_of_another_scale_is_found(ratio: float) -> None:
    """All weights together change by as much as they may."""
    weights = [tf.Variable(tf.fill([8], value)) for value in (1.0, 1e-3)]
    bound = [
        BoundVariable(i, f"weight{i}", w.handle, w.dtype, w.shape, trainable=True)
        for i, w in enumerate(weights)
    ]
    before = [weight.read_value() for weight in weights]
    after = [before[0] * 1.1, before[1] * (1 + 0.1 * ratio)]
    for weight in weights:
        weight.assign(weight * 1.1)
    undone, noise = same_step.UndoneStep(bound, before, after, None, 1.0), same_step.RoundingNoise()
    accepted = AcceptedDifferences(frozenset(variable.key for variable in bound))
    assert not same_step.describe_difference(undone, None, False, noise, accepted)
    scales = same_step.find_scales(undone, noise, accepted)
    assert scales == ({} if 0.7 < ratio < 1.4 else {"weight1": pytest.approx(ratio, rel=1e-3)})
    assert not same_step.find_scales(undone, noise, NOTHING_ACCEPTED)


def test_other_variables_and_results_must_be_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    args = (monkeypatch, 0.1, 1.0, 1.2, tf.float32)
    assert "'weight' would change" in difference(*args, AcceptedDifferences(frozenset({1})))
    weights = AcceptedDifferences(frozenset({0}))
    assert "joint_results" in difference(*args, weights, returned=1.0)
    assert not difference(*args, replace(weights, results=frozenset({0})), returned=1.0)


def test_accepted_weights_must_be_numbers_in_both_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted = AcceptedDifferences(frozenset({0}))
    assert difference(monkeypatch, 0.1, 1.0, float("nan"), tf.float32, accepted)
