"""The gradients that a tensor was made of, in small graphs."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tf_libra.capture.gradient_provenance import origins
from tf_libra.capture.gradient_registry import GradientRegistry, ReductionPolicy


def found_in(make: Callable[[Any, Any], Any]) -> list[tuple[str, bool]]:
    """Names of the gradients that a tensor has for origins, made of those of `a` and `b`."""
    found: list[tuple[str, bool]] = []

    @tf.function(autograph=False)
    def step(x: Any) -> Any:
        first, second = 2.0 * x, 3.0 * x
        marks = GradientRegistry(ReductionPolicy())
        marks.record_call(("a", "b"), (first, second), ("a", "b"), is_reduced=False)
        result = make(first, second)
        found.extend((origin.name, origin.is_itself) for origin in origins(marks, result))
        return result

    step(tf.ones([3]))
    return found


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda a, b: a, [("a", True)]),
        (lambda a, b: tf.identity(tf.cast(b, tf.float16)), [("b", True)]),
        (lambda a, b: a / 2.0, [("a", False)]),
        (lambda a, b: tf.ones([3]), []),
        (lambda a, b: tf.reduce_sum(a), [("a", False)]),
        # Nearest first: what is clipped, and then what the norm is of.
        (lambda a, b: tf.clip_by_global_norm([a, b], 1.0)[0][1], [("b", False), ("a", False)]),
    ],
)
def test_origins_are_what_a_tensor_was_made_of(
    make: Callable[[Any, Any], Any], expected: list[tuple[str, bool]]
) -> None:
    assert found_in(make) == expected


def test_origins_are_found_from_inside_of_a_branch() -> None:
    inside: list[Any] = []

    @tf.function(autograph=False)
    def step(x: Any) -> Any:
        gradient = 2.0 * x
        marks = GradientRegistry(ReductionPolicy())
        marks.record_call(("a",), (gradient,), ("a",), is_reduced=False)

        def branch() -> Any:
            mean = gradient / 2.0
            inside.extend(origin.name for origin in origins(marks, mean))
            return mean

        return tf.cond(tf.reduce_sum(x) > 0, branch, lambda: x)

    step(tf.ones([3]))
    assert inside == ["a"]
