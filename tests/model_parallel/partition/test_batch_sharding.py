"""Every example of the joint batch is passed once, and computed once by each stage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model_parallel.job import make_plan
from tf_libra.model_parallel.partition.batch_sharding import (
    BatchShards,
    ExampleRange,
    check_divisible,
)
from tf_libra.model_parallel.partition.layout import Layout


def make_layout(replicas: list[int], num_microbatches: int) -> Layout:
    names = [f"layer {number}" for number in range(len(replicas))]
    plan = make_plan(names, range(len(names)), replicas, num_microbatches)
    return Layout.from_pipeline_plan(plan)


ranges = st.builds(
    lambda start, size: ExampleRange(start, start + size), st.integers(0, 9), st.integers(0, 9)
)


@given(ranges, ranges)
def test_intersection_of_ranges_contains_their_common_examples(
    first: ExampleRange, second: ExampleRange
) -> None:
    common = first & second
    expected = set(range(first.start, first.stop)) & set(range(second.start, second.stop))
    assert set(range(common.start, common.stop)) == expected
    assert common.size == len(expected)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(1, 4), st.integers(1, 24))
def test_shards_of_a_divisible_batch_cover_each_example_once_per_stage(
    replicas: list[int], num_microbatches: int, examples_per_rank: int
) -> None:
    layout = make_layout(replicas, num_microbatches)
    num_examples = examples_per_rank * sum(replicas)
    if any(num_examples % (num_microbatches * count) for count in replicas):
        with pytest.raises(ValueError, match=r"divide"):
            BatchShards(layout, examples_per_rank)
        return
    shards = BatchShards(layout, examples_per_rank)
    passed = [shards.passed_range(rank) for rank in range(layout.num_ranks)]
    assert [i for each in passed for i in range(each.start, each.stop)] == [*range(num_examples)]
    for stage, ranks in enumerate(layout.ranks):
        computed = [
            shards.computed_range(ranks, rank, microbatch)
            for microbatch in range(num_microbatches)
            for rank in ranks
        ]
        assert {each.size for each in computed} == {shards.examples_per_replica(stage)}
        # In the order of microbatches, and of replicas within each.
        examples = [i for each in computed for i in range(each.start, each.stop)]
        assert examples == [*range(num_examples)]


@pytest.mark.parametrize("examples_per_rank", [0, 5, 7])
def test_batch_that_microbatches_do_not_divide_raises(examples_per_rank: int) -> None:
    message = rf"^num_microbatches .* 2 ranks with {examples_per_rank} examples each, got 4$"
    with pytest.raises(ValueError, match=message):
        check_divisible(examples_per_rank, 2, 4)
    check_divisible(6, 2, 4)


def test_microbatch_that_replicas_do_not_divide_raises() -> None:
    with pytest.raises(ValueError, match=r"2 replicas .* got 3 examples"):
        BatchShards(make_layout([1, 2], 4), 4)
