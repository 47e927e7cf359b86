"""The counts of the benchmark of backward order, on a net small enough to check."""

import tensorflow as tf

from benchmarks import pinning


def three_layers() -> tuple[tf.keras.Model, list[tf.TensorSpec]]:
    layers = [tf.keras.layers.Dense(8, use_bias=False) for _ in range(3)]
    return tf.keras.Sequential([tf.keras.layers.Input((8,)), *layers]), [tf.TensorSpec((4, 8))]


def test_rows_of_a_small_net() -> None:
    step = pinning.trace(three_layers)
    assert step.names == ["2", "1", "0"]
    assert step.num_bytes == [256, 256, 256]
    traced, groups, alone, measuring, total = pinning.measure(step)
    assert (traced.edges, traced.joins) == (0, 0)
    # In sequence, but parallel to the gradients of activations: no product is added to the path.
    assert groups.edges > 0
    assert traced.work <= alone.work == measuring.work < total.work
    product = 2 * 4 * 8 * 8
    assert total.work - traced.work >= product


def test_the_work_of_a_product() -> None:
    graph = tf.Graph()
    with graph.as_default():
        a, b = tf.zeros((2, 3, 5)), tf.zeros((2, 5, 7))
        tf.matmul(a, b, name="batched")
        tf.einsum("abc,acd->abd", a, b, name="einsum")
        tf.matmul(a[0], b[0], transpose_a=False, name="plain")
    nodes = {node.name: node for node in graph.as_graph_def(add_shapes=True).node}
    (einsum,) = (name for name, node in nodes.items() if node.op == "Einsum")
    assert pinning.work(nodes["batched"], nodes) == 2 * 2 * 3 * 5 * 7
    assert pinning.work(nodes[einsum], nodes) == 2 * 2 * 3 * 5 * 7
    assert pinning.work(nodes["plain"], nodes) == 2 * 3 * 5 * 7
