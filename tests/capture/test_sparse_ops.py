"""Rows that are gathered, by the engine of one process; `tests/runtime` has several."""

import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_libra.backends import engine as engine_lib
from tf_libra.backends.aux_collectives import UNPLANNED
from tf_libra.capture import sparse_ops


@pytest.fixture(scope="module")
def engine() -> Iterator[engine_lib.Engine]:
    address = engine_lib.listen("127.0.0.1")
    secret = secrets.token_bytes(engine_lib.SECRET_BYTES)
    running = engine_lib.connect(0, [address], secret, 1, 10.0, 5.0)
    yield running
    running.close()


@pytest.mark.parametrize("index_type", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("rows", [[], [5], [3, 1, 3]])
@pytest.mark.parametrize("row_shape", [[], [2], [2, 3]])
def test_rows_of_one_process_stay_as_they_are(
    engine: engine_lib.Engine, index_type: str, dtype: str, rows: list[int], row_shape: list[int]
) -> None:
    values = np.random.default_rng(1).normal(size=[len(rows), *row_shape]).astype(dtype)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, *row_shape], dtype),
            tf.TensorSpec([None], index_type),
        ]
    )
    def gather(values: Any, indices: Any) -> Any:
        slices = tf.IndexedSlices(values, indices, tf.constant([8, *row_shape]))
        found = sparse_ops.gathered(slices, "table", "step", 0, 1)
        assert found.values.shape.as_list() == [None, *row_shape]
        return found

    found = gather(values, np.asarray(rows, index_type))
    np.testing.assert_array_equal(found.values, values)
    np.testing.assert_array_equal(found.indices, rows)
    assert found.indices.dtype == index_type
    assert found.dense_shape.numpy().tolist() == [8, *row_shape]


def test_what_is_gathered_is_no_plans_concern() -> None:
    with tf.Graph().as_default() as graph:
        slices = tf.IndexedSlices(tf.ones([2, 4]), tf.constant([1, 2]), tf.constant([8, 4]))
        sparse_ops.gathered(slices, "table", "step", 1, 3)
    nodes = [node for node in graph.as_graph_def().node if node.op == "LibraAllReduce"]
    found = [
        (node.attr["tensor_names"].list.s[0].decode(), node.attr["reduction"].s.decode())
        for node in nodes
    ]
    assert found == [
        ("table/rows", "sum"),
        ("table/indices", "sum"),
        ("table/values", "average"),
    ]
    assert {node.attr["plan"].s.decode() for node in nodes} == {UNPLANNED}
