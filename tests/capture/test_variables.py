from typing import Any

import keras
import tensorflow as tf

from tf_libra.capture import variables


def test_a_variable_of_keras_carries_one_of_tensorflow() -> None:
    own = tf.Variable(1.0, name="own")
    layer = keras.layers.Dense(2, name="dense")
    layer.build((None, 3))
    assert variables.plain(own) is own
    assert isinstance(variables.plain(layer.kernel), tf.Variable)
    constant = tf.constant(1.0)
    assert variables.plain(constant) is constant


def test_names_are_unique_within_a_model() -> None:
    layer = keras.layers.Dense(2, name="dense")
    layer.build((None, 3))
    assert variables.variable_name(layer.kernel) == "dense/kernel"
    assert variables.variable_name(tf.Variable(1.0, name="w")) == "w"


def test_states_of_random_numbers_are_each_ranks_own() -> None:
    dropout = keras.layers.Dropout(0.5, seed=1)
    assert all(variables.is_random_state(variable) for variable in dropout.variables)
    assert dropout.variables
    generator = tf.random.Generator.from_seed(1)
    assert variables.is_random_state(generator.state)
    assert not variables.is_random_state(tf.Variable(1.0, name="seed"))


def test_variables_are_those_that_a_graph_uses() -> None:
    used, unused = tf.Variable(1.0, name="used"), tf.Variable(1.0, name="unused")
    seen: list[Any] = []

    @tf.function
    def step() -> Any:
        result = used * 2.0
        seen.extend(variables.variables_of(tf.compat.v1.get_default_graph()))
        return result

    graph = step.get_concrete_function().graph
    for found in (variables.variables_of(graph), seen):
        assert any(variable is used for variable in found)
        assert not any(variable is unused for variable in found)
    assert variables.variables_of(tf.Graph()) == []
