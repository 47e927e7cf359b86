"""The variables that a call can touch, their names, and the differences between them."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_libra.variable_sync import bound_variables as variables
from tf_libra.variable_sync.bound_variables import BoundVariable


def touched(function: Any, *args: Any, **kwargs: Any) -> tuple[BoundVariable, ...]:
    concrete = function.get_concrete_function(*args, **kwargs)
    return variables.bound_variables(
        concrete, variables.flat_arguments(function, concrete, args, kwargs)
    )


def using(*used: tf.Variable) -> tuple[BoundVariable, ...]:
    @tf.function
    def step() -> tf.Tensor:
        return tf.add_n([tf.reduce_sum(tf.cast(variable, tf.float32)) for variable in used])

    return touched(step)


def is_of(bound_to: BoundVariable, variable: tf.Variable) -> bool:
    return bound_to.tensor is variable.handle


def test_order_is_that_of_the_program() -> None:
    made = [tf.Variable(tf.fill([2], float(i))) for i in range(40)]
    order = np.random.default_rng(0).permutation(40)
    found = using(*(made[i] for i in order))
    assert [int(variable.read_value()[0]) for variable in found] == order.tolist()


def test_names_are_unique() -> None:
    same = [tf.Variable(0.0, name="kernel"), tf.Variable(1.0, name="kernel")]
    bias = tf.Variable(2.0, name="bias")
    assert [(variable.name, float(variable.read_value())) for variable in using(*same, bias)] == [
        ("kernel", 0.0),
        ("kernel#1", 1.0),
        ("bias", 2.0),
    ]


def test_variables_of_functions_inside_are_found() -> None:
    deep = tf.Variable(3.0, name="deep")
    inner = tf.function(lambda: deep * 2.0)
    assert [variable.name for variable in touched(tf.function(lambda: inner()))] == ["deep"]


def test_states_of_random_generators_are_known() -> None:
    counter = tf.Variable(1, name="iteration")
    keras_state = keras.random.SeedGenerator(7).state.value
    state = tf.random.Generator.from_seed(7).state
    assert [variable.is_random_state for variable in using(counter, keras_state, state)] == [
        False,
        True,
        True,
    ]


class Pair(tf.experimental.ExtensionType):
    first: tf.Tensor
    second: tf.Tensor


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (lambda a, b, x: ((a, x, b), {}), "ab"),
        (lambda a, b, x: ((x,), {"second": b, "first": a}), "ab"),
        (lambda a, b, x: (({"z": b, "y": {"x": a}}, x), {}), "ab"),
        (lambda a, b, x: (([b], Pair(x, x), (a,)), {}), "ba"),
        (lambda a, b, x: ((keras.Variable(1.0), b, 3, "text", None), {}), "b"),
    ],
)
def test_variables_that_are_arguments_are_found(
    arguments: Callable[..., Any], expected: str
) -> None:
    known = {"a": tf.Variable(1.0), "b": tf.Variable(2.0)}
    captured = tf.Variable(3.0, name="captured")
    args, kwargs = arguments(known["a"], known["b"], tf.constant(4.0))

    @tf.function
    def step(*args: Any, first: Any = None, second: Any = None) -> Any:
        return captured + sum(
            tf.convert_to_tensor(part)
            for part in tf.nest.flatten((args, first, second), expand_composites=False)
            if isinstance(part, tf.Variable)
        )

    *given, last = (variable for variable in touched(step, *args, **kwargs) if variable.is_variable)
    assert is_of(last, captured)
    found = [
        name
        for touched_variable in given
        for name, v in known.items()
        if is_of(touched_variable, v)
    ]
    assert "".join(found) == expected


def test_variables_of_two_calls_of_one_trace_differ() -> None:
    step = tf.function(lambda v: v.assign_add(1.0))
    original, other = tf.Variable(1.0, name="v"), tf.Variable(2.0, name="v")
    (first,), (second,) = touched(step, original), touched(step, other)
    assert step.experimental_get_tracing_count() == 1
    assert is_of(first, original) and is_of(second, other)
    assert first.key != second.key


def test_default_of_an_argument_may_be_a_variable() -> None:
    default = tf.Variable(1.0, name="default")

    @tf.function
    def step(x: Any, v: Any = default) -> Any:
        return x * v

    assert [variable.name for variable in touched(step, tf.constant(1.0))] == ["default"]


def test_tensors_that_were_captured_are_found_and_data_sets_are_not() -> None:
    rows, data = tf.ones([2, 3]), tf.data.Dataset.range(3)
    iterator = iter(data)
    found = touched(tf.function(lambda: tf.reduce_sum(rows) + tf.cast(next(iterator), tf.float32)))
    assert [(variable.name, variable.is_variable) for variable in found if variable.is_number] == [
        ("tensor", False)
    ]


def bound_to(value: Any) -> BoundVariable:
    return using(tf.Variable(value))[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_equal_variables_have_equal_digests(dtype: str, shape: tuple[int, ...]) -> None:
    first, other = (bound_to(tf.cast(tf.ones(shape), dtype)) for _ in range(2))
    assert first.digest() == other.digest()


@pytest.mark.parametrize(
    "other",
    [
        np.array([1.0, 2.0], "float64"),
        np.array([[1.0, 2.0]], "float32"),
        np.array([1.0, np.nextafter(np.float32(2), np.float32(3))], "float32"),
        np.array([2.0, 1.0], "float32"),
        np.array([1.0, np.nan], "float32"),
    ],
)
def test_any_difference_changes_the_digest(other: np.ndarray) -> None:
    assert bound_to(np.array([1.0, 2.0], "float32")).digest() != bound_to(other).digest()


def test_not_a_number_equals_itself() -> None:
    assert bound_to([np.nan, 1.0]).digest() == bound_to([np.nan, 1.0]).digest()


def test_values_are_read_and_written_through_the_handle() -> None:
    variable = tf.Variable([1.0, 2.0])
    (bound,) = using(variable)
    before = bound.read_value()
    bound.assign(np.array([3.0, 4.0], "float32"))
    assert variable.numpy().tolist() == [3.0, 4.0]
    assert before.numpy().tolist() == [1.0, 2.0]


def test_user_may_list_variables_by_name_pattern_or_object() -> None:
    weight, other = tf.Variable(1.0, name="net/weight"), tf.Variable(1.0, name="net/weight")
    first, second = using(weight, other)
    assert variables.matches(first, ["net/*"]) and variables.matches(second, ["net/weight"])
    assert variables.matches(second, ["net/weight#1"])
    assert not variables.matches(first, ["net/weight#1", "weight", other])
    assert variables.matches(second, [weight, other])
