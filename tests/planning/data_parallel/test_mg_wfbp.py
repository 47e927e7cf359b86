import pytest
from hypothesis import given, settings

import tf_libra
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


def test_counts_from_the_end_of_the_all_reduce_before():
    # The first all-reduce runs from 1 to 12, so the second could start at 12 only.
    assert stops([10, 5, 5], [1, 2, 9.99]) == [1, 3]
    assert stops([10, 5, 5], [1, 2, 10]) == [1, 2, 3]


def test_looks_at_no_contention():
    profile = tf_libra.BackwardProfile.from_arrays([5] * 8, [0.4] * 8)
    slow = tf_libra.ContentionModel(2, 0.5, (1.0, 0.4), (0.1, 0, 0), (1.0, 0, 0))
    assert merge_stops(profile, slow, 2) == merge_stops(profile, COST, 2)


@settings(max_examples=200, deadline=None)
@given(reference.profiles(max_tensors=12), reference.any_costs((1, 2)))
def test_follows_the_rule_pair_by_pair(profile, cost):
    """MG-WFBP's own loop: merge one, then recompute when every all-reduce starts."""
    produced = profile.compute_seconds.cumsum()
    count = len(produced)
    merged = [False] * count
    for index in range(count - 1):
        starts = communication_starts(profile, cost, produced, merged)
        merged[index] = produced[index + 1] < starts[index] + cost.exclusive_startup_seconds
    expected = [i + 1 for i in range(count) if not merged[i]]
    plan = tf_libra.make_plan(profile, cost, strategies.MgWfbp(num_threads=2))
    assert [g.stop for g in plan.groups] == expected


def communication_starts(profile, cost, produced, merged):
    starts, free, size = [], 0.0, 0
    for index, num_bytes in enumerate(profile.num_bytes):
        size += int(num_bytes)
        starts.append(max(free, produced[index]))
        if not merged[index]:
            free = starts[-1] + float(cost.exclusive_all_reduce(size, 2))
            size = 0
    return starts
