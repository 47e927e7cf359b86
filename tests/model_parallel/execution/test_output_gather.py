"""Outputs combined from microbatches and replicas equal those of one device for the batch."""

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import num_examples
from tests.model_parallel.job import batches, build_model, trace
from tests.model_parallel.models import convolutional
from tests.model_parallel.partition.test_batch_sharding import make_layout
from tests.model_parallel.trained_model import Trained
from tf_libra.model_parallel.capture.batch_axes import BatchAxes
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.execution.output_gather import GatheredOutput, resize_axis
from tf_libra.model_parallel.partition.batch_sharding import BatchShards
from tf_libra.model_parallel.partition.stage_partition import StagePartition


def output(
    axis: int | None = None,
    *,
    is_running_total: bool = False,
    is_replicated: bool = False,
    is_floating: bool = True,
    local_shape: Sequence[int] = (),
    num_examples: int = 1,
) -> GatheredOutput:
    return GatheredOutput(
        axis, is_running_total, is_replicated, is_floating, tuple(local_shape), num_examples
    )


@settings(max_examples=num_examples(60))
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2))
def test_output_with_a_batch_axis_has_the_examples_in_order(
    num_replicas: int, num_microbatches: int, rows: int, axis: int
) -> None:
    """Each replica computes a part of every microbatch."""
    shards = BatchShards(make_layout([num_replicas], num_microbatches), 2 * num_microbatches)
    [ranks] = shards.layout.ranks
    num_examples = shards.microbatch_size * num_microbatches
    per_replica = shards.examples_per_replica(0)
    local_shape = [1, 1, 1]
    local_shape[axis] = rows * per_replica
    gathered = output(axis, local_shape=local_shape, num_examples=per_replica)
    parts = []
    for rank in ranks:
        values = []
        for microbatch in range(num_microbatches):
            own = shards.computed_range(ranks, rank, microbatch)
            shape = resize_axis(local_shape, axis, rows * own.size)
            values.append(tf.reshape(tf.range(rows * own.start, rows * own.stop), shape))
        parts.append(gathered.combine_microbatches(values))
    found = gathered.combine_replicas(parts, num_microbatches)
    assert gathered.shape(num_examples) == tuple(found.shape)
    np.testing.assert_array_equal(tf.reshape(found, [-1]), np.arange(rows * num_examples))


@pytest.mark.parametrize(("is_floating", "expected"), [(True, 5.5), (False, 33)])
def test_output_without_a_batch_axis_is_averaged_or_added(
    is_floating: bool, expected: float
) -> None:
    gathered = output(is_floating=is_floating)
    dtype = tf.float64 if is_floating else tf.int64
    parts = [
        gathered.combine_microbatches([tf.constant(value, dtype) for value in values])
        for values in ((1, 2, 3), (8, 9, 10))
    ]
    found = gathered.combine_replicas(parts, 3)
    assert found == expected and found.dtype == dtype
    assert gathered.shape(96) == ()


def test_running_total_has_the_value_of_the_last_microbatch() -> None:
    gathered = output(is_running_total=True)
    values = [tf.constant(value) for value in (1.0, 4.0, 2.0)]
    assert gathered.combine_microbatches(values) == 2.0
    assert gathered.combine_replicas([tf.constant(2.0), tf.constant(4.0)], 3) == 3.0
    replicated = output(is_running_total=True, is_replicated=True, is_floating=False)
    assert replicated.combine_replicas([tf.constant(2), tf.constant(2)], 3) == 2


def test_output_of_a_single_replica_is_returned_unchanged() -> None:
    value = tf.constant([[3, 4]])
    gathered = output(1, local_shape=(1, 2), num_examples=2)
    assert gathered.combine_replicas([value], 7) is value


class WithResults(Trained):
    """A step with all kinds of results: by example, by batch, constant, and unsupported ones."""

    unsupported = ""

    def step(self, images, labels):
        result = super().step(images, labels)
        odd = tf.equal(labels % 2, 1)
        result |= {"odd": odd, "count": tf.math.count_nonzero(odd), "three": tf.constant([1, 2, 3])}
        if self.unsupported == "any":
            result["any"] = tf.reduce_any(odd)
        if self.unsupported == "which":
            result["which"] = tf.boolean_mask(labels, odd)
        return result


def analyze(unsupported: str = "") -> dict[str, GatheredOutput]:
    """Returns the gathered outputs of the step, by name."""
    trained = WithResults(**vars(build_model(convolutional)))
    trained.unsupported = unsupported
    recorder = StepRecorder(tf.function(trained.step))
    [(images, labels)] = batches(1, 8)
    graphs = [trace(recorder, images, labels, size) for size in (4, 8)]
    axes, partition = BatchAxes(graphs[0], 4, graphs[1], 8), StagePartition(graphs[0], (0, 1))
    packed = graphs[0].recording.concrete.function_type.pack_output(graphs[0].outputs)
    of_microbatch = {id(tensor) for tensor in graphs[0].microbatch_outputs}
    return {
        name: GatheredOutput.from_tensor(partition, axes, tensor)
        for name, tensor in packed.items()
        if id(tensor) in of_microbatch
    }


def test_outputs_of_a_trace_are_classified() -> None:
    found = analyze()
    assert found["logits"] == output(0, local_shape=(4, 10), num_examples=4)
    assert found["odd"] == output(0, is_floating=False, local_shape=(4,), num_examples=4)
    assert found["loss"] == output()
    assert found["count"] == output(is_floating=False)
    assert found["metric"] == output(is_running_total=True)
    assert not {"updates", "three"} & found.keys()


@pytest.mark.parametrize(
    ("unsupported", "message"),
    [("any", "dtype is bool"), ("which", r"shape \(None,\) is not static")],
)
def test_output_that_cannot_be_combined_raises(unsupported: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        analyze(unsupported)
