"""Samples go to who computes them, who waits for no more of them than it needs."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model_parallel.job import plan_of
from tests.model_parallel.threads import Threads
from tf_libra.model_parallel.execution.input_scatter import InputScatter
from tf_libra.model_parallel.partition.batch_sharding import BatchShards
from tf_libra.model_parallel.partition.layout import Layout

SAMPLES = 6


def distributions(replicas, num_microbatches, samples_per_rank, timeout_seconds=60.0):
    """One per rank: the first stage needs images, the last one labels."""
    names = [f"layer_{number}" for number in range(len(replicas))]
    layout = Layout.of_pipeline(
        plan_of(names, range(len(names)), replicas, num_microbatches),
    )
    needs = {team: set() for team in layout.teams}
    needs[layout.ranks[0]].add("images")
    needs[layout.ranks[-1]] |= {"labels", "rate"}
    axes = {"images": 0, "labels": 1}
    threads = Threads(layout.num_ranks, timeout_seconds)
    shares = BatchShards(layout, samples_per_rank)
    return shares, [
        InputScatter(shares, needs, axes, ["images", "labels", "rate"], threads.of(rank))
        for rank in range(layout.num_ranks)
    ]


def given(rank, samples):
    """Returns the arguments of a rank: samples are numbered over all ranks."""
    numbers = tf.range(rank * samples, (rank + 1) * samples)
    return {"images": numbers[:, None], "labels": -numbers[None, :], "rate": tf.constant(0.5)}


@pytest.mark.parametrize(
    ("replicas", "num_microbatches"), [([1, 1], 3), ([2, 1], 3), ([1, 2], 1), ([3], 2), ([2, 2], 2)]
)
def test_everyone_gets_the_samples_that_it_computes(replicas, num_microbatches):
    shares, ranks = distributions(replicas, num_microbatches, SAMPLES)
    samples = [one(given(rank, SAMPLES)) for rank, one in enumerate(ranks)]
    for rank, one in enumerate(samples):
        [stage] = shares.layout.stages_of(rank)
        team = shares.layout.ranks[stage]
        for microbatch in reversed(range(num_microbatches)):
            computed = shares.computed(team, rank, microbatch)
            numbers = np.arange(computed.start, computed.stop)
            expected = {}
            if stage == 0:
                expected["images"] = numbers[:, None]
            if stage == len(replicas) - 1:
                expected |= {"labels": -numbers[None, :], "rate": 0.5}
            for _ in range(2):  # forward, and backward
                found = one.of(team, microbatch)
                assert found.keys() == expected.keys()
                for name, value in expected.items():
                    np.testing.assert_array_equal(found[name], value)


def test_own_samples_are_computed_before_those_of_others_are_there():
    """The first of the two microbatches is the own batch of the only rank that has begun."""
    shares, ranks = distributions([1, 1], 2, SAMPLES, timeout_seconds=0.1)
    samples = ranks[0](given(0, SAMPLES))
    [team] = [team for team in shares.layout.teams if 0 in team]
    np.testing.assert_array_equal(samples.of(team, 0)["images"][:, 0], range(SAMPLES))
    with pytest.raises(TimeoutError, match="of rank 1"):
        samples.of(team, 1)
