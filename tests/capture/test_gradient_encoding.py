"""Complex gradients are taken apart, and put together again; rows come with valid ids."""

import math
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.capture.traces import traced
from tests.drawing import num_examples
from tf_libra.backends import collective_ops
from tf_libra.backends import engine as engine_lib
from tf_libra.backends.collective_ops import UNPLANNED
from tf_libra.capture import gradient_encoding
from tf_libra.capture.gradient_encoding import as_complex, as_real


def numbers(*shape: int, dtype: str = "complex64") -> Any:
    random = np.random.default_rng(1)
    return tf.constant(random.normal(size=shape) + 1j * random.normal(size=shape), dtype)


@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3)])
@pytest.mark.parametrize(("dtype", "real"), [("complex64", "float32"), ("complex128", "float64")])
def test_parts_stand_along_a_last_dimension(shape: Any, dtype: str, real: str) -> None:
    gradient = numbers(*shape, dtype=dtype)
    parts = as_real(gradient)
    assert (parts.dtype, parts.shape) == (real, (*shape, 2))
    np.testing.assert_array_equal(as_complex(parts), gradient)


@pytest.mark.parametrize("dense_shape", [None, [5, 3]])
def test_rows_of_a_table_keep_their_indices(dense_shape: Any) -> None:
    shape = None if dense_shape is None else tf.constant(dense_shape)
    gradient = tf.IndexedSlices(numbers(2, 3), tf.constant([4, 1]), shape)
    parts = as_real(gradient)
    again = as_complex(parts)
    np.testing.assert_array_equal(again.values, gradient.values)
    np.testing.assert_array_equal(again.indices, gradient.indices)
    if dense_shape is None:
        assert again.dense_shape is parts.dense_shape is None
    else:
        assert parts.dense_shape.numpy().tolist() == [*dense_shape, 2]
        assert again.dense_shape.numpy().tolist() == dense_shape


def test_real_gradients_are_as_they_are() -> None:
    gradient = tf.ones([2])
    assert as_real(gradient) is gradient


def test_gradients_of_complex_weights_are_all_reduced_as_real_numbers() -> None:
    wave = tf.Variable(numbers(4, 4), name="wave")

    def step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.abs(tf.cast(inputs, tf.complex64) @ wave))
        return tape.gradient(loss, wave)

    trace, found = traced(step)
    assert found == ["wave"]
    assert (trace.reduced[0].shape, trace.reduced[0].dtype) == ((4, 4, 2), "float32")


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
def test_rows_of_one_process_are_added_by_id(
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
        exchange = gradient_encoding.RowExchange("table", "step", 1)
        both = exchange.gather(slices), exchange.average(slices)
        for found in both:
            assert found.values.shape.as_list() == [None, *row_shape]
        return both

    gathered, found = gather(values, np.asarray(rows, index_type))
    np.testing.assert_array_equal(gathered.values, values)
    np.testing.assert_array_equal(gathered.indices, rows)
    assert gathered.indices.dtype == index_type
    table = np.zeros([8, *row_shape], dtype)
    np.add.at(table, rows, values)
    assert found.indices.numpy().tolist() == sorted(set(rows))
    np.testing.assert_array_equal(found.values, table[sorted(set(rows))])
    assert found.indices.dtype == index_type
    assert found.dense_shape.numpy().tolist() == [8, *row_shape]


@pytest.mark.parametrize("ids", [[-1], [2, -8, -1], [8], [2, 2**31 - 1], [-(2**31)]])
@pytest.mark.parametrize("exchanged", ["gather", "average"])
@pytest.mark.parametrize("consumer", ["scatter", "densify"])
def test_own_ids_outside_the_table_do_as_in_one_process(
    engine: engine_lib.Engine, ids: list[int], exchanged: str, consumer: str
) -> None:
    slices = tf.IndexedSlices(
        tf.ones([len(ids), 2]), tf.constant(ids, tf.int64), tf.constant([8, 2])
    )
    exchange = gradient_encoding.RowExchange("table", "step", 1)

    def outcome(exchanged: Callable[[tf.IndexedSlices], tf.IndexedSlices]) -> Any:
        table = tf.Variable(tf.zeros([8, 2]))
        try:
            rows = exchanged(slices)
            if consumer == "densify":
                return tf.convert_to_tensor(rows).numpy().tolist()
            table.scatter_sub(rows)
        except tf.errors.InvalidArgumentError:
            return "error"
        return table.numpy().tolist()

    assert outcome(getattr(exchange, exchanged)) == outcome(lambda slices: slices)


_from_wire = tf.function(
    lambda numbers, last: gradient_encoding.from_wire(
        numbers, tf.int64, -4, last, "ids of 'table'"
    ),
    input_signature=[tf.TensorSpec([None], tf.float64), tf.TensorSpec([], tf.float64)],
)
_IN_RANGE = st.integers(-4, 2**53).map(float)
# TensorFlow takes denormal numbers for zeros.
_ANY = st.floats(allow_subnormal=False)
_NUMBERS = st.lists(st.one_of(_IN_RANGE, _IN_RANGE, _ANY), max_size=5)


@settings(max_examples=num_examples(200), deadline=None)
@given(_NUMBERS, st.sampled_from([3, 10**9, 2**53]))
@example([], 3)
@example([math.nan], 3)
@example([math.inf, 1], 3)
@example([-math.inf], 3)
@example([3, 4], 3)
@example([0.5], 3)
@example([-0.0, -4], 3)
@example([-5], 3)
@example([2.0**31, 2.0**53], 2**53)
@example([2.0**53 + 2], 2**53)
@example([1e300], 2**53)
def test_integers_of_other_ranks_are_checked(numbers: list[float], last: int) -> None:
    is_valid = [math.isfinite(n) and n == int(n) and -4 <= n <= last for n in numbers]
    if all(is_valid):
        assert _from_wire(numbers, float(last)).numpy().tolist() == [int(n) for n in numbers]
        return
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        _from_wire(numbers, float(last))
    assert "table" in raised.value.message
    assert format(numbers[is_valid.index(False)], ".17g") in raised.value.message


@pytest.mark.parametrize("ends", [[2], [4], [-1], [1, 3], [[3]]])
def test_parts_end_with_the_last_row(engine: engine_lib.Engine, ends: Any) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        collective_ops.all_reduce(tf.ones([3, 2]), "rows", "step", ends=tf.constant(ends))
    assert "ends" in raised.value.message


@pytest.mark.parametrize("shared", [[], [0, 1]])
def test_rows_are_of_one_kind(engine: engine_lib.Engine, shared: list[int]) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        collective_ops.all_reduce(
            tf.ones([3]), "rows", "step", ends=[3], is_shared=tf.constant(shared, tf.int32)
        )
    assert "ends" in raised.value.message


@pytest.mark.parametrize("is_planned", [False, True])
def test_plans_include_rows_gathered_or_added(is_planned: bool) -> None:
    with tf.Graph().as_default() as graph:
        slices = tf.IndexedSlices(tf.ones([2, 4]), tf.constant([1, 2]), tf.constant([8, 4]))
        exchange = gradient_encoding.RowExchange("table", "step", 3, is_planned)
        assert exchange.gather(slices).values.shape.as_list() == [None, 4]
        exchange.average(slices)
    nodes = [node for node in graph.as_graph_def().node if node.op == "LibraAllReduce"]
    found = [
        (
            node.attr["tensor_names"].list.s[0].decode(),
            node.attr["reduction"].s.decode(),
            node.attr["plan"].s.decode(),
        )
        for node in nodes
    ]
    plan = "" if is_planned else UNPLANNED
    ids = [("table/counts", "sum", UNPLANNED), ("table/indices", "sum", UNPLANNED)]
    assert found == [
        *ids,
        ("table", "average", plan),
        *ids,
        ("table", "average", plan),
    ]
