"""Which variables are compared, under which names, and what tells them apart."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_libra.session import variables
from tf_libra.tracing import variables as tracing_variables


def traced(*used: tf.Variable) -> object:
    @tf.function
    def step() -> tf.Tensor:
        return tf.add_n([tf.cast(tf.reduce_sum(variable), tf.float32) for variable in used])

    return step.get_concrete_function()


def test_order_is_that_of_the_program() -> None:
    made = [tf.Variable(tf.fill([2], float(i))) for i in range(40)]
    order = np.random.default_rng(0).permutation(40)
    found = variables.compared(traced(*(made[i] for i in order)).graph)
    assert [int(variable[0]) for _, variable in found] == order.tolist()


def test_names_are_unique() -> None:
    same = [tf.Variable(0.0, name="kernel"), tf.Variable(1.0, name="kernel")]
    bias = tf.Variable(2.0, name="bias")
    found = variables.compared(traced(*same, bias).graph)
    assert [(name, float(variable)) for name, variable in found] == [
        ("kernel", 0.0),
        ("kernel#1", 1.0),
        ("bias", 2.0),
    ]


def test_variables_of_functions_inside_are_found() -> None:
    deep = tf.Variable(3.0, name="deep")
    inner = tf.function(lambda: deep * 2.0)

    @tf.function
    def step() -> tf.Tensor:
        return inner()

    assert [name for name, _ in variables.compared(step.get_concrete_function().graph)] == ["deep"]


def test_counters_are_compared_and_states_of_random_generators_are_not() -> None:
    counter, weight = tf.Variable(1, name="iteration"), tf.Variable(1.0, name="weight")
    keras_state = keras.random.SeedGenerator(7).state.value
    state = tf.random.Generator.from_seed(7).state
    names = [n for n, _ in variables.compared(traced(counter, weight, keras_state, state).graph)]
    assert names == ["iteration", "weight"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_equal_variables_have_equal_digests(dtype: str, shape: tuple[int, ...]) -> None:
    one, other = (tf.Variable(tf.ones(shape, dtype)) for _ in range(2))
    assert variables.digests([("v", one)]) == variables.digests([("v", other)])


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
    one = tf.Variable(np.array([1.0, 2.0], "float32"))
    assert variables.digests([("v", one)]) != variables.digests([("v", tf.Variable(other))])


def test_not_a_number_equals_itself() -> None:
    one, other = (tf.Variable([np.nan, 1.0]) for _ in range(2))
    assert variables.digests([("v", one)]) == variables.digests([("v", other)])


def test_plain_variables_of_all_kinds() -> None:
    ours, theirs = tf.Variable(1.0), keras.Variable(2.0)
    assert tracing_variables.plain(ours) is ours
    assert isinstance(tracing_variables.plain(theirs), tf.Variable)
    assert float(tracing_variables.plain(theirs)) == 2.0
    tensor = tf.constant(3.0)
    assert tracing_variables.plain(tensor) is tensor
