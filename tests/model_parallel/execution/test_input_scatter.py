"""Examples reach the ranks that compute them; a rank waits only for those that it needs next."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model_parallel.job import make_plan
from tests.model_parallel.threads import Threads
from tf_libra.model_parallel.execution.input_scatter import InputScatter
from tf_libra.model_parallel.partition.batch_sharding import BatchShards
from tf_libra.model_parallel.partition.layout import Layout

EXAMPLES = 6


def make_scatters(replicas, num_microbatches, examples_per_rank, timeout_seconds=60.0):
    """Returns the shards, and the scatter of each rank; stage 0 needs images, the last labels."""
    names = [f"layer_{number}" for number in range(len(replicas))]
    layout = Layout.from_pipeline_plan(
        make_plan(names, range(len(names)), replicas, num_microbatches),
    )
    needs = {group: set() for group in layout.replica_groups}
    needs[layout.ranks[0]].add("images")
    needs[layout.ranks[-1]] |= {"labels", "rate"}
    axes = {"images": 0, "labels": 1}
    threads = Threads(layout.num_ranks, timeout_seconds)
    shards = BatchShards(layout, examples_per_rank)
    return shards, [
        InputScatter(shards, needs, axes, ["images", "labels", "rate"], threads.transport(rank))
        for rank in range(layout.num_ranks)
    ]


def make_arguments(rank, examples):
    """Returns the arguments of a rank, with examples numbered over all ranks."""
    numbers = tf.range(rank * examples, (rank + 1) * examples)
    return {"images": numbers[:, None], "labels": -numbers[None, :], "rate": tf.constant(0.5)}


@pytest.mark.parametrize(
    ("replicas", "num_microbatches"), [([1, 1], 3), ([2, 1], 3), ([1, 2], 1), ([3], 2), ([2, 2], 2)]
)
def test_scatter_delivers_to_each_rank_the_examples_that_it_computes(replicas, num_microbatches):
    shards, scatters = make_scatters(replicas, num_microbatches, EXAMPLES)
    inputs = [
        scatter.scatter(make_arguments(rank, EXAMPLES)) for rank, scatter in enumerate(scatters)
    ]
    for rank, own_inputs in enumerate(inputs):
        [stage] = shards.layout.rank_stages(rank)
        group = shards.layout.ranks[stage]
        for microbatch in reversed(range(num_microbatches)):
            computed = shards.computed_range(group, rank, microbatch)
            numbers = np.arange(computed.start, computed.stop)
            expected = {}
            if stage == 0:
                expected["images"] = numbers[:, None]
            if stage == len(replicas) - 1:
                expected |= {"labels": -numbers[None, :], "rate": 0.5}
            for _ in range(2):  # forward and backward
                found = own_inputs.get(group, microbatch)
                assert found.keys() == expected.keys()
                for name, value in expected.items():
                    np.testing.assert_array_equal(found[name], value)


def test_microbatch_of_local_examples_is_available_before_other_ranks_have_sent():
    """The first of the two microbatches is the batch of rank 0, the only rank that has begun."""
    shards, scatters = make_scatters([1, 1], 2, EXAMPLES, timeout_seconds=0.1)
    inputs = scatters[0].scatter(make_arguments(0, EXAMPLES))
    [group] = [group for group in shards.layout.replica_groups if 0 in group]
    np.testing.assert_array_equal(inputs.get(group, 0)["images"][:, 0], range(EXAMPLES))
    with pytest.raises(TimeoutError, match="rank 1"):
        inputs.get(group, 1)
