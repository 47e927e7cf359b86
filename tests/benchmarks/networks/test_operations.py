"""Arithmetic of single ops, and who needs it first."""

import pytest
import tensorflow as tf

from benchmarks.networks.operations import ancestors, count_operations, first_needed


def operations_of(function, *shapes):
    """Sums over the ops of a traced function by type."""
    specs = [tf.TensorSpec(shape) for shape in shapes]
    counts: dict[str, float] = {}
    for op in tf.function(function).get_concrete_function(*specs).graph.get_operations():
        counts[op.type] = counts.get(op.type, 0) + count_operations(op)
    return counts


def test_products():
    counts = operations_of(lambda a, b: tf.matmul(a, b, transpose_a=True), (5, 2), (5, 3))
    assert counts["MatMul"] == 2 * 2 * 3 * 5
    counts = operations_of(lambda a, b: tf.matmul(a, b, transpose_b=True), (4, 2, 5), (4, 3, 5))
    assert counts["BatchMatMulV2"] == 2 * 4 * 2 * 3 * 5


def test_convolutions_and_their_gradients_cost_the_same():
    def gradients(images, kernel):
        with tf.GradientTape() as tape:
            tape.watch([images, kernel])
            result = tf.nn.conv2d(images, kernel, 2, "SAME")
        return tape.gradient(result, [images, kernel])

    counts = operations_of(gradients, (2, 8, 8, 3), (3, 3, 3, 7))
    expected = 2 * (2 * 4 * 4 * 7) * (3 * 3 * 3)
    assert counts["Conv2D"] == expected
    assert counts["Conv2DBackpropInput"] == counts["Conv2DBackpropFilter"] == expected


def test_other_ops_count_their_elements_and_moves_nothing():
    counts = operations_of(lambda x: tf.transpose(tf.nn.relu(x)), (3, 5))
    assert counts["Relu"] == 15
    assert counts["Transpose"] == 0
    assert operations_of(lambda x: tf.reduce_sum(x), (3, 5))["Sum"] == 15


def test_shapes_must_be_static():
    with pytest.raises(ValueError, match="shapes must be static"):
        operations_of(lambda a, b: tf.matmul(a, b), (None, 2), (2, 3))


INPUTS = {"g0": ["b"], "g1": ["c"], "c": ["b", "f"], "b": ["f"], "f": [], "g2": ["g1"]}


def test_a_node_counts_once_for_the_first_that_needs_it():
    weights = {"b": 2.0, "c": 5.0, "f": 100.0, "g0": 0.25, "g1": 0.5}
    assert first_needed(["g0", "g1", "g2"], INPUTS, weights, {"f"}) == [2.25, 5.5, 0]
    assert first_needed(["g1", "g0"], INPUTS, weights, {"f"}) == [7.5, 0.25]


def test_ancestors():
    assert ancestors(["c"], INPUTS) == {"c", "b", "f"}
