"""The outputs that microbatches and replicas form equal those of one device for the batch."""

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model_parallel.job import batches, fresh, traced
from tests.model_parallel.models import Trained, convolutional
from tests.model_parallel.partition.test_batch_sharding import layout_of
from tf_libra.model_parallel.capture.batch_axes import BatchAxes
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.execution.output_gather import GatheredOutput, resized
from tf_libra.model_parallel.partition.batch_sharding import BatchShards
from tf_libra.model_parallel.partition.stage_partition import StagePartition


def returned(
    axis: int | None = None,
    *,
    is_running: bool = False,
    is_same: bool = False,
    is_floating: bool = True,
    static: Sequence[int] = (),
    size: int = 1,
) -> GatheredOutput:
    return GatheredOutput(axis, is_running, is_same, is_floating, tuple(static), size)


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2))
def test_samples_are_in_the_order_of_the_batch(
    num_replicas: int, num_microbatches: int, rows: int, axis: int
) -> None:
    """Each replica has a part of every microbatch."""
    shares = BatchShards(layout_of([num_replicas], num_microbatches), 2 * num_microbatches)
    [ranks] = shares.layout.ranks
    whole = shares.microbatch_size * num_microbatches
    static = [1, 1, 1]
    static[axis] = rows * shares.size_in(0)
    one = returned(axis, static=static, size=shares.size_in(0))
    parts = []
    for rank in ranks:
        values = []
        for microbatch in range(num_microbatches):
            own = shares.computed(ranks, rank, microbatch)
            shape = resized(static, axis, rows * own.size)
            values.append(tf.reshape(tf.range(rows * own.start, rows * own.stop), shape))
        parts.append(one.joined(values))
    found = one.of_replicas(parts, num_microbatches)
    assert one.shape(whole) == tuple(found.shape)
    np.testing.assert_array_equal(tf.reshape(found, [-1]), np.arange(rows * whole))


@pytest.mark.parametrize(("is_floating", "expected"), [(True, 5.5), (False, 33)])
def test_means_are_averaged_and_counts_are_added_up(is_floating: bool, expected: float) -> None:
    one = returned(is_floating=is_floating)
    dtype = tf.float64 if is_floating else tf.int64
    parts = [
        one.joined([tf.constant(value, dtype) for value in values])
        for values in ((1, 2, 3), (8, 9, 10))
    ]
    found = one.of_replicas(parts, 3)
    assert found == expected and found.dtype == dtype
    assert one.shape(96) == ()


def test_of_what_every_microbatch_writes_the_last_counts() -> None:
    one = returned(is_running=True)
    assert one.joined([tf.constant(value) for value in (1.0, 4.0, 2.0)]) == 2.0
    assert one.of_replicas([tf.constant(2.0), tf.constant(4.0)], 3) == 3.0
    same = returned(is_running=True, is_same=True, is_floating=False)
    assert same.of_replicas([tf.constant(2), tf.constant(2)], 3) == 2


def test_a_replica_alone_returns_what_it_has() -> None:
    value = tf.constant([[3, 4]])
    assert returned(1, static=(1, 2), size=2).of_replicas([value], 7) is value


class Told(Trained):
    """Returns what a step may: of samples, of the batch, of neither; and what it may not."""

    wrong = ""

    def step(self, images, labels):
        result = super().step(images, labels)
        odd = tf.equal(labels % 2, 1)
        result |= {"odd": odd, "count": tf.math.count_nonzero(odd), "three": tf.constant([1, 2, 3])}
        if self.wrong == "any":
            result["any"] = tf.reduce_any(odd)
        if self.wrong == "which":
            result["which"] = tf.boolean_mask(labels, odd)
        return result


def of_all(wrong: str = "") -> dict[str, GatheredOutput]:
    """Returns the gathered outputs, by name."""
    trained = Told(**vars(fresh(convolutional)))
    trained.wrong = wrong
    recorder = StepRecorder(tf.function(trained.step))
    [(images, labels)] = batches(1, 8)
    graphs = [traced(recorder, images, labels, size) for size in (4, 8)]
    axes, cut = BatchAxes(graphs[0], 4, graphs[1], 8), StagePartition(graphs[0], (0, 1))
    packed = graphs[0].recording.concrete.function_type.pack_output(graphs[0].outputs)
    samples = {id(one) for one in graphs[0].microbatch_outputs}
    return {
        name: GatheredOutput.of(cut, axes, one)
        for name, one in packed.items()
        if id(one) in samples
    }


def test_it_is_known_of_a_trace_what_is_put_together_how() -> None:
    found = of_all()
    assert found["logits"] == returned(0, static=(4, 10), size=4)
    assert found["odd"] == returned(0, is_floating=False, static=(4,), size=4)
    assert found["loss"] == returned()
    assert found["count"] == returned(is_floating=False)
    assert found["metric"] == returned(is_running=True)
    assert not {"updates", "three"} & found.keys()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("any", r"step returns .*, a bool that depends on samples, .*: return a number"),
        ("which", r"step returns .*, whose shape, \(None,\), is known only in a step"),
    ],
)
def test_what_cannot_be_put_together_is_named(wrong: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        of_all(wrong)
