"""The pieces that replicas of one stage send to those of another, for any numbers of replicas."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model_parallel.partition.test_batch_sharding import layout_of
from tf_libra.model_parallel.partition.batch_sharding import BatchShards, Range
from tf_libra.model_parallel.partition.resharding import Resharding, exchange_of, joined, sliced
from tf_libra.model_parallel.partition.stage_partition import StageMessage

ROWS = 2  # of a tensor for each sample


class Exchanged:
    """One tensor of a microbatch, which one stage sends to another.

    Attributes:
        arrived: by rank of the stage that receives it, what it has then.
    """

    def __init__(
        self,
        shares: BatchShards,
        source: int,
        target: int,
        axis: int | None,
        values: dict[int, Any],
    ) -> None:
        layout = shares.layout
        message = StageMessage("tensor", source, target, 0, 1)

        def exchange(stage: int, rank: int, sends: bool) -> Resharding:
            shape = list(next(iter(values.values())).shape)
            if axis is not None:
                shape[axis] = ROWS * shares.size_in(stage)
            dtype = tf.as_dtype(next(iter(values.values())).dtype)
            # What each rank's own trace says, for its number of samples.
            tensor = SimpleNamespace(shape=shape, dtype=dtype)
            cut: Any = SimpleNamespace(tensor=lambda name: tensor)
            axes: Any = SimpleNamespace(batch_axis=lambda name: axis)
            return exchange_of(cut, axes, shares, message, rank, sends)

        sent = {}
        for rank, array in values.items():
            value = tf.constant(array)
            _, along, pieces = exchange(source, rank, sends=True)
            for piece in pieces:
                part = value
                if along is not None:
                    part = sliced(value, along, Range(0, value.shape[along]), piece.own)
                assert (rank, piece.rank) not in sent
                sent[rank, piece.rank] = part
        self.arrived = {}
        for rank in layout.ranks[target]:
            _, along, pieces = exchange(target, rank, sends=False)
            parts = []
            for piece in pieces:
                part = sent.pop((piece.rank, rank))  # else a receiver would wait until it times out
                if along is not None:
                    assert part.shape[along] == piece.own.size
                if piece.weight != 1:
                    part = part * tf.constant(piece.weight, part.dtype)
                parts.append(part)
            one = joined(parts, along) if along is not None or len(parts) == 1 else tf.add_n(parts)
            self.arrived[rank] = np.array(one)
        assert not sent  # else it would be in the way of what comes next


@st.composite
def stages(draw: Any) -> tuple[BatchShards, int, int]:
    """Two stages of any numbers of replicas, of which the first or the second sends."""
    replicas = [draw(st.integers(1, 6)) for _ in range(2)]
    samples = int(np.lcm(*replicas)) * draw(st.integers(1, 2))
    source = draw(st.integers(0, 1))
    return BatchShards(layout_of(replicas, sum(replicas)), samples), source, 1 - source


def share(shares: BatchShards, stage: int, rank: int) -> np.ndarray:
    """The samples of a microbatch that a rank computes."""
    own = shares.computed(shares.layout.ranks[stage], rank, 0)
    return np.arange(own.start, own.stop)


@settings(max_examples=60)
@given(stages(), st.integers(0, 1))
def test_everyone_gets_its_samples_once_and_in_order(
    case: tuple[BatchShards, int, int], axis: int
) -> None:
    shares, source, target = case

    def numbers(stage: int, rank: int) -> np.ndarray:
        rows = np.repeat(share(shares, stage, rank), ROWS).astype(np.int32)
        return rows[:, None] if axis == 0 else rows[None]

    values = {rank: numbers(source, rank) for rank in shares.layout.ranks[source]}
    arrived = Exchanged(shares, source, target, axis, values).arrived
    assert arrived.keys() == set(shares.layout.ranks[target])
    for rank, found in arrived.items():
        np.testing.assert_array_equal(found, numbers(target, rank))


@settings(max_examples=60)
@given(stages())
def test_gradients_are_those_of_the_mean_over_what_each_computes(
    case: tuple[BatchShards, int, int],
) -> None:
    """Each replica divides by its own number of samples, and the other stage by another."""
    shares, source, target = case
    of_sample = np.random.default_rng(0).normal(size=10_000).astype(np.float32)

    def gradient(stage: int, rank: int) -> np.ndarray:
        own = share(shares, stage, rank)
        # What is computed forward is no mean, and so is what it is.
        return np.repeat(of_sample[own] / (len(own) if source > target else 1), ROWS)

    values = {rank: gradient(source, rank) for rank in shares.layout.ranks[source]}
    for rank, found in Exchanged(shares, source, target, 0, values).arrived.items():
        np.testing.assert_allclose(found, gradient(target, rank), rtol=1e-6)


@settings(max_examples=60)
@given(stages())
def test_of_a_mean_everyone_gets_that_of_the_replicas_that_had_its_samples(
    case: tuple[BatchShards, int, int],
) -> None:
    """Weighed by how many of them they had: together as one that had them all."""
    shares, source, target = case
    of_sample = np.random.default_rng(0).normal(size=10_000)
    ranks = shares.layout.ranks[source]
    values = {rank: np.float64(of_sample[share(shares, source, rank)].mean()) for rank in ranks}
    of_source = np.concatenate(
        [np.full(len(share(shares, source, rank)), values[rank]) for rank in ranks]
    )
    for rank, found in Exchanged(shares, source, target, None, values).arrived.items():
        np.testing.assert_allclose(found, of_source[share(shares, target, rank)].mean())


@pytest.mark.parametrize("value", [np.int64(7), np.array([True, False])])
@settings(max_examples=40)
@given(stages())
def test_what_is_no_mean_is_the_same_everywhere(
    value: Any, case: tuple[BatchShards, int, int]
) -> None:
    shares, source, target = case
    values = dict.fromkeys(shares.layout.ranks[source], value)
    for found in Exchanged(shares, source, target, None, values).arrived.values():
        np.testing.assert_array_equal(found, value)
