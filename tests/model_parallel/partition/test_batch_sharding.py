"""Every sample of a batch is passed once, and computed once by each stage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model_parallel.job import plan_of
from tf_libra.model_parallel.partition.batch_sharding import BatchShards, Range, check_divides
from tf_libra.model_parallel.partition.layout import Layout


def layout_of(replicas: list[int], num_microbatches: int) -> Layout:
    names = [f"layer {number}" for number in range(len(replicas))]
    return Layout.of_pipeline(plan_of(names, range(len(names)), replicas, num_microbatches))


ranges = st.builds(
    lambda start, size: Range(start, start + size), st.integers(0, 9), st.integers(0, 9)
)


@given(ranges, ranges)
def test_what_two_ranges_have_in_common(one: Range, other: Range) -> None:
    common = one & other
    expected = set(range(one.start, one.stop)) & set(range(other.start, other.stop))
    assert set(range(common.start, common.stop)) == expected
    assert common.size == len(expected)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(1, 4), st.integers(1, 24))
def test_every_sample_has_one_rank_per_stage_or_the_batch_is_refused(
    replicas: list[int], num_microbatches: int, samples_per_rank: int
) -> None:
    layout = layout_of(replicas, num_microbatches)
    whole = samples_per_rank * sum(replicas)
    if any(whole % (num_microbatches * count) for count in replicas):
        with pytest.raises(ValueError, match=r"divide"):
            BatchShards(layout, samples_per_rank)
        return
    shares = BatchShards(layout, samples_per_rank)
    passed = [shares.passed(rank) for rank in range(layout.num_ranks)]
    assert [sample for one in passed for sample in range(one.start, one.stop)] == [*range(whole)]
    for stage, ranks in enumerate(layout.ranks):
        computed = [
            shares.computed(ranks, rank, m) for m in range(num_microbatches) for rank in ranks
        ]
        assert {one.size for one in computed} == {shares.size_in(stage)}
        # Microbatch by microbatch, and in each replica by replica.
        samples = [sample for one in computed for sample in range(one.start, one.stop)]
        assert samples == [*range(whole)]


@pytest.mark.parametrize("samples_per_rank", [0, 5, 7])
def test_microbatches_that_do_not_divide_the_batch_are_named(samples_per_rank: int) -> None:
    told = rf"num_microbatches must divide the batch .* 2 times {samples_per_rank} samples, got 4$"
    with pytest.raises(ValueError, match=told):
        check_divides(samples_per_rank, 2, 4)
    check_divides(6, 2, 4)


def test_replicas_that_do_not_divide_a_microbatch_are_named() -> None:
    with pytest.raises(ValueError, match=r"the 2 replicas .* a microbatch of 3 samples"):
        BatchShards(layout_of([1, 2], 4), 4)
