"""Pieces that replicas of one stage send to those of another, for any numbers of replicas."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import num_examples
from tests.model_parallel.partition.test_batch_sharding import make_layout
from tf_libra.model_parallel.partition.batch_sharding import BatchShards, ExampleRange
from tf_libra.model_parallel.partition.resharding import (
    Resharding,
    concat,
    plan_resharding,
    slice_range,
)
from tf_libra.model_parallel.partition.stage_partition import StageMessage

ROWS = 2  # rows of a tensor for each example


def reshard(
    shards: BatchShards, source: int, target: int, axis: int | None, values: dict[int, Any]
) -> dict[int, np.ndarray]:
    """Sends a tensor of a microbatch from one stage to another.

    Args:
        shards: division of examples among ranks.
        source: the stage that sends.
        target: the stage that receives.
        axis: batch axis of the tensor.
        values: by rank of the source, its part.

    Returns:
        By rank of the target, its part.
    """
    layout = shards.layout
    message = StageMessage("tensor", source, target, 0, 1)
    sample = next(iter(values.values()))

    def plan(stage: int, rank: int, is_sender: bool) -> Resharding:
        shape = list(sample.shape)
        if axis is not None:
            shape[axis] = ROWS * shards.examples_per_replica(stage)
        # Each rank has a trace for its own number of examples.
        tensor = SimpleNamespace(shape=shape, dtype=tf.as_dtype(sample.dtype))
        partition: Any = SimpleNamespace(tensor=lambda name: tensor)
        axes: Any = SimpleNamespace(batch_axis=lambda name: axis)
        return plan_resharding(partition, axes, shards, message, rank, is_sender)

    sent = {}
    for rank, array in values.items():
        value = tf.constant(array)
        _, along, pieces = plan(source, rank, is_sender=True)
        for piece in pieces:
            part = value
            if along is not None:
                whole = ExampleRange(0, value.shape[along])
                part = slice_range(value, along, whole, piece.local_range)
            assert (rank, piece.peer) not in sent
            sent[rank, piece.peer] = part
    received = {}
    for rank in layout.ranks[target]:
        _, along, pieces = plan(target, rank, is_sender=False)
        parts = []
        for piece in pieces:
            part = sent.pop((piece.peer, rank))  # a missing piece would block the receiver
            if along is not None:
                assert part.shape[along] == piece.local_range.size
            if piece.weight != 1:
                part = part * tf.constant(piece.weight, part.dtype)
            parts.append(part)
        is_concatenated = along is not None or len(parts) == 1
        received[rank] = np.array(concat(parts, along) if is_concatenated else tf.add_n(parts))
    assert not sent  # a piece without a receiver would be received as the next message
    return received


@st.composite
def stages(draw: Any) -> tuple[BatchShards, int, int]:
    """Two stages with any numbers of replicas, of which the first or the second sends."""
    replicas = [draw(st.integers(1, 6)) for _ in range(2)]
    examples = int(np.lcm(*replicas)) * draw(st.integers(1, 2))
    source = draw(st.integers(0, 1))
    return BatchShards(make_layout(replicas, sum(replicas)), examples), source, 1 - source


def examples_of(shards: BatchShards, stage: int, rank: int) -> np.ndarray:
    """Returns the examples of the first microbatch that a rank computes."""
    own = shards.computed_range(shards.layout.ranks[stage], rank, 0)
    return np.arange(own.start, own.stop)


@settings(max_examples=num_examples(60))
@given(stages(), st.integers(0, 1))
def test_resharding_along_a_batch_axis_delivers_examples_once_in_order(
    case: tuple[BatchShards, int, int], axis: int
) -> None:
    shards, source, target = case

    def numbers(stage: int, rank: int) -> np.ndarray:
        rows = np.repeat(examples_of(shards, stage, rank), ROWS).astype(np.int32)
        return rows[:, None] if axis == 0 else rows[None]

    values = {rank: numbers(source, rank) for rank in shards.layout.ranks[source]}
    received = reshard(shards, source, target, axis, values)
    assert received.keys() == set(shards.layout.ranks[target])
    for rank, value in received.items():
        np.testing.assert_array_equal(value, numbers(target, rank))


@settings(max_examples=num_examples(60))
@given(stages())
def test_resharded_gradients_are_scaled_to_the_receivers_mean(
    case: tuple[BatchShards, int, int],
) -> None:
    """The loss of a replica is a mean over its own number of examples."""
    shards, source, target = case
    by_example = np.random.default_rng(0).normal(size=10_000).astype(np.float32)

    def gradient(stage: int, rank: int) -> np.ndarray:
        own = examples_of(shards, stage, rank)
        # An activation, which is sent forward, is no mean and is not scaled.
        return np.repeat(by_example[own] / (len(own) if source > target else 1), ROWS)

    values = {rank: gradient(source, rank) for rank in shards.layout.ranks[source]}
    for rank, value in reshard(shards, source, target, 0, values).items():
        np.testing.assert_allclose(value, gradient(target, rank), rtol=1e-6)


@settings(max_examples=num_examples(60))
@given(stages())
def test_resharding_without_a_batch_axis_averages_weighted_by_common_examples(
    case: tuple[BatchShards, int, int],
) -> None:
    """Together the receivers have the mean that one device would have."""
    shards, source, target = case
    by_example = np.random.default_rng(0).normal(size=10_000)
    ranks = shards.layout.ranks[source]
    values = {
        rank: np.float64(by_example[examples_of(shards, source, rank)].mean()) for rank in ranks
    }
    source_mean = np.concatenate(
        [np.full(len(examples_of(shards, source, rank)), values[rank]) for rank in ranks]
    )
    for rank, value in reshard(shards, source, target, None, values).items():
        np.testing.assert_allclose(value, source_mean[examples_of(shards, target, rank)].mean())


@pytest.mark.parametrize("value", [np.int64(7), np.array([True, False])])
@settings(max_examples=40)
@given(stages())
def test_resharding_of_integers_without_a_batch_axis_copies_one_replica(
    value: Any, case: tuple[BatchShards, int, int]
) -> None:
    shards, source, target = case
    values = dict.fromkeys(shards.layout.ranks[source], value)
    for received in reshard(shards, source, target, None, values).values():
        np.testing.assert_array_equal(received, value)
