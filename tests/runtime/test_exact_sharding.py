"""Updates that `shard_updates="auto"` leaves whole, and other values of the option do not."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tf_libra.capture.gradient_registry import ReducedGradient
from tf_libra.internal import native
from tf_libra.runtime.update_sharding import UpdateSharding, find_update_sharding
from tf_libra.variable_sync.bound_variables import bound_variables

SIZE = 100


def find(
    change: Callable[[Any], Any], *arguments: Any, is_exact: bool, log: bool | None = None
) -> UpdateSharding:
    """Returns the sharding of a step that moves a weight by what `change` makes of its gradient."""
    weight = tf.Variable(tf.zeros([SIZE]), name="weight")

    def reduced(gradient: tf.Tensor) -> tf.Tensor:
        (result,) = native.load().ops.libra_all_reduce(
            tensors=[gradient], ends=[], tensor_names=["weight"], function="f"
        )
        return result

    @tf.function
    def step(gradient: tf.Tensor, *rest: Any) -> None:
        weight.assign_sub(change(reduced(gradient)))

    @tf.function
    def with_default(gradient: tf.Tensor, log: bool = False) -> None:
        weight.assign_sub(change(reduced(gradient)))

    values = [tf.zeros([SIZE]), *arguments]
    function = step if log is None else with_default
    concrete = function.get_concrete_function(*values)
    gradient = ReducedGradient("weight", (SIZE,), "float32", 4 * SIZE)
    tensors = [value for value in tf.nest.flatten(values) if isinstance(value, tf.Tensor)]
    touched = bound_variables(concrete, tensors)
    return find_update_sharding(concrete, [gradient], touched, False, is_exact)


@pytest.mark.parametrize("arguments", [(), (tf.ones([]),), ({"labels": tf.ones([2])},)])
def test_updates_are_sharded_if_no_rank_can_tell(arguments: tuple[Any, ...]) -> None:
    found = find(lambda g: 0.1 * g, *arguments, is_exact=True)
    assert (list(found.updates), found.whole) == (["weight"], {})


@pytest.mark.parametrize(
    ("change", "arguments", "reason"),
    [
        (lambda g: g / tf.norm(g), (), "(Sum) combines"),
        (lambda g: tf.reshape(tf.py_function(lambda: 0.1, [], tf.float32), []) * g, (), "calls"),
        (lambda g: tf.reshape(tf.numpy_function(float, [], tf.float32), []) * g, (), "calls"),
        (lambda g: 0.1 * next(iter(tf.data.Dataset.from_tensors(1.0))) * g, (), "data may end"),
        (lambda g: g, (True,), "than True"),
        (lambda g: g, (None,), "than None"),
        (lambda g: g, ({"mode": "train"},), "than 'train'"),
        (lambda g: g, ([3],), "than 3"),
    ],
)
def test_updates_stay_whole_if_a_rank_may_tell(
    change: Callable[[Any], Any], arguments: tuple[Any, ...], reason: str
) -> None:
    assert list(find(change, *arguments, is_exact=False).updates) == ["weight"]
    found = find(change, *arguments, is_exact=True)
    assert found.updates == {}
    assert reason in found.whole["weight"]


def test_default_of_a_flag_is_a_value_that_another_rank_may_not_pass() -> None:
    found = find(lambda g: g, is_exact=True, log=False)
    assert "than False" in found.whole["weight"]


def test_truth_values_are_found_by_parts() -> None:
    found = find(
        lambda g: tf.where(tf.reduce_all(tf.math.is_finite(g)), g, tf.zeros_like(g)), is_exact=True
    )
    assert found.updates["weight"].sums == ("All of weight",)
