"""Errors as reasons against strategies of other kinds."""

from collections.abc import Callable

import pytest
import tensorflow as tf

import tf_libra
from tf_libra.runtime.family_options import describe_error
from tf_libra.strategies import Auto


def of_a_layer() -> None:
    tf.keras.Sequential([tf.keras.Input([8]), tf.keras.layers.Dense(1)])(tf.zeros([2, 3]))


def of_a_graph() -> None:
    run = tf.function(lambda x, y: x + y, input_signature=2 * [tf.TensorSpec([None])])
    run(tf.zeros([2]), tf.zeros([3]))


def of_a_script() -> None:
    raise RuntimeError("in user code:\n\n    File ...\n\n    ValueError: too small\n")


@pytest.mark.parametrize(
    ("fails", "begins", "ends"),
    [
        (of_a_layer, "Input 0 ", "received input with shape (2, 3)"),
        (of_a_graph, "InvalidArgumentError: ", "[2] vs. [3]"),
        (of_a_script, "RuntimeError: too small", "too small"),
    ],
)
def test_error_is_described_in_one_line(fails: Callable[[], None], begins: str, ends: str) -> None:
    with pytest.raises(Exception) as caught:
        fails()
    text = describe_error(caught.value)
    assert text.startswith(begins) and text.endswith(ends), text


@pytest.mark.parametrize("allow", [("metrics",), ("joint_results", "x")])
def test_other_differences_that_auto_may_allow_are_an_error(allow: tuple[str, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"^allow must be of joint_results, .*host_effects, got '(metrics|x)'"
    ):
        Auto(allow=allow)


@pytest.mark.parametrize("families", [("libra",), ("unknown",)])
def test_other_families_of_auto_are_an_error(families: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"^families must be of .*, one-rank, got"):
        tf_libra.optimize(Auto(families=families))(lambda: None)
