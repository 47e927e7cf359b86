"""All-reduces that carry no planned gradient, of a process that is alone."""

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from tests.backends.alone import alone
from tf_libra.backends import collective_ops
from tf_libra.backends.engine import Engine
from tf_libra.specs.telemetry import UNPLANNED, records_of_step


@pytest.fixture
def engine() -> Iterator[Engine]:
    running = alone()
    yield running
    running.close()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("reduction", ["sum", "average"])
def test_all_reduce_of_one_rank_returns_its_input(
    engine: Engine, dtype: str, reduction: str
) -> None:
    value = tf.constant(np.arange(6).reshape(2, 3), dtype)
    reduced = collective_ops.all_reduce(value, "rows", "step", reduction)
    assert reduced.dtype == dtype
    np.testing.assert_array_equal(reduced, value)


def test_it_belongs_to_no_plan(engine: Engine) -> None:
    engine.set_step(3)
    collective_ops.barrier("the end of the data", "step")
    records = engine.drain_telemetry()
    assert [(r.plan, r.tensor_names) for r in records] == [(UNPLANNED, ("the end of the data",))]
    assert records_of_step(records, 3) == ()


def test_barrier_while_a_graph_is_built_runs_immediately(engine: Engine) -> None:
    @tf.function
    def step() -> tf.Tensor:
        collective_ops.barrier("a new trace", "step")
        return tf.constant(0)

    concrete = step.get_concrete_function()
    assert [r.tensor_names for r in engine.drain_telemetry()] == [("a new trace",)]
    assert "LibraAllReduce" not in {node.op for node in concrete.graph.as_graph_def().node}


def test_barrier_after_an_abort_raises_its_reason(engine: Engine) -> None:
    engine.abort("the data set is empty")
    with pytest.raises(tf.errors.OpError, match="the data set is empty"):
        collective_ops.barrier("the first step", "step")
