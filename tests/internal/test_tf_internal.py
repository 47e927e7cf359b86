import subprocess
import sys

import keras
import pytest
import tensorflow as tf

from tf_libra.internal import tf_internal


def test_op_definition_is_found_by_type_and_none_for_an_unknown_op():
    assert tf_internal.find_op_definition("MatMul").name == "MatMul"
    assert tf_internal.find_op_definition("NoSuchOp") is None


def test_bytes_attribute_is_in_the_node_definition():
    with tf.Graph().as_default():
        op = tf.identity(tf.constant(1.0)).op
        tf_internal.set_bytes_attribute(op, "_label", b"w")
        assert op.node_def.attr["_label"].s == b"w"


def test_graph_collection_is_seen_while_a_summary_trace_is_on():
    assert not tf_internal.is_collecting_graphs()
    tf.summary.trace_on(graph=True)
    assert tf_internal.is_collecting_graphs()
    tf.summary.trace_off()
    assert not tf_internal.is_collecting_graphs()
    tf_internal.eager_context().disable_graph_collection()  # which trace_off leaves on


def test_ops_without_callbacks_are_not_checked():
    """Eagerly, and in functions."""

    def divide(x):
        with tf_internal.without_op_callbacks():
            hidden = x / x
        return tf.where(tf.math.is_nan(hidden), 0.0, hidden)

    zero = tf.constant(0.0)
    tf.debugging.enable_check_numerics()
    try:
        assert divide(zero) == tf.function(divide)(zero) == 0.0
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.divide(zero, zero)
    finally:
        tf.debugging.disable_check_numerics()


def test_functional_model_class_is_that_of_functional_models():
    inputs = keras.Input([2])
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    assert isinstance(model, tf_internal.functional_model_class())
    assert not isinstance(keras.Sequential(), tf_internal.functional_model_class())


def test_package_and_patch_table_load_without_tensorflow():
    code = "import sys, tf_libra, tf_libra.internal.patches; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
