import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tf_libra import strategies
from tf_libra.planning.data_parallel.mg_wfbp import merge_stops

# a = 1 s, 1 s per byte alone.
COST = tf_libra.ContentionModel(2, 0.5, (1.0, 0.1), (1.0, 0, 0), (1.0, 0, 0))


def stops(num_bytes, compute_seconds):
    profile = tf_libra.BackwardProfile.from_arrays(num_bytes, compute_seconds)
    return merge_stops(profile, COST, 2)


@pytest.mark.parametrize(("gap", "expected"), [(0.99, [2]), (1.0, [1, 2])])
def test_merges_within_a_startup_overhead(gap, expected):
    assert stops([5, 5], [1, gap]) == expected


def test_startup_counts_from_the_end_of_the_previous_all_reduce():
    # The first all-reduce runs from 1 to 12, so the second could start at 12 only.
    assert stops([10, 5, 5], [1, 2, 9.99]) == [1, 3]
    assert stops([10, 5, 5], [1, 2, 10]) == [1, 2, 3]


def test_groups_ignore_contention():
    profile = tf_libra.BackwardProfile.from_arrays([5] * 8, [0.4] * 8)
    slow = tf_libra.ContentionModel(2, 0.5, (1.0, 0.4), (0.1, 0, 0), (1.0, 0, 0))
    assert merge_stops(profile, slow, 2) == merge_stops(profile, COST, 2)


@settings(max_examples=num_examples(300), deadline=None)
@given(
    reference.profiles(max_tensors=12),
    reference.any_costs((1, 2)),
    st.sampled_from([0, 20, 8192, 10**6]),
)
def test_follows_the_rule_pair_by_pair(profile, cost, min_elements):
    """MG-WFBP's own loop: merge one, then recompute when every all-reduce starts."""
    produced = profile.compute_seconds.cumsum()
    count = len(produced)
    merged = [False] * count
    elements = 0
    for index in range(count - 1):
        starts = reference.communication_starts(profile, cost, merged, 2)
        elements += int(profile.num_bytes[index]) // 4
        merged[index] = elements < min_elements or bool(
            produced[index + 1] < starts[index] + cost.exclusive_startup_seconds
        )
        elements *= merged[index]
    expected = [i + 1 for i in range(count) if not merged[i]]
    strategy = strategies.MgWfbp(num_threads=2, min_elements=min_elements)
    plan = tf_libra.make_plan(profile, cost, strategy)
    assert [g.stop for g in plan.groups] == expected


@pytest.mark.parametrize(("dtype", "item"), [(None, 4), ("float32", 4), ("bfloat16", 2), ("x", 4)])
def test_fewer_than_8192_elements_merge_the_next_tensor(dtype, item):
    dtypes = None if dtype is None else [dtype] * 4
    profile = tf_libra.BackwardProfile.from_arrays(
        [8191 * item, item, 8192 * item, item], [5.0] * 4, dtypes=dtypes
    )
    quick = tf_libra.ContentionModel(2, 0.5, (1.0, 0), (1e9, 0, 0), (1e9, 0, 0))
    assert [g.stop for g in tf_libra.make_plan(profile, quick, "mg-wfbp").groups] == [2, 3, 4]
    alone = strategies.MgWfbp(min_elements=0)
    assert [g.stop for g in tf_libra.make_plan(profile, quick, alone).groups] == [1, 2, 3, 4]


def test_wrong_argument_is_named():
    with pytest.raises(ValueError, match="min_elements must be from 0"):
        strategies.MgWfbp(min_elements=-1)
