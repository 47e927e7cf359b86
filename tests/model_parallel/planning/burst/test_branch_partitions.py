"""Partitions of branches into lanes, compared with all allotments of devices."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import num_examples
from tf_libra.model_parallel.planning.burst.branch_partitions import (
    BranchLanes,
    BranchPartition,
    allotments_of,
)
from tf_libra.model_parallel.planning.burst.pareto_paths import Table
from tf_libra.model_parallel.planning.burst.strategy import BlockRun, EdgeRun


@settings(max_examples=num_examples(200))
@given(st.sets(st.integers(2, 9), max_size=3), st.integers(1, 12), st.integers(1, 3))
def test_allotments_are_those_of_which_no_lane_could_have_more(more, devices, lanes):
    counts = sorted({1} | more)
    fitting = [
        positions
        for positions in itertools.product(range(len(counts)), repeat=lanes)
        if sum(counts[position] for position in positions) <= devices
    ]
    largest = [
        allotment
        for allotment in fitting
        if not any(other != allotment and all(np.array(other) >= allotment) for other in fitting)
    ]
    found = list(allotments_of(counts, devices, lanes))
    assert sorted(found) == sorted(largest)
    assert len(found) == len(set(found))


def table(name: int, seconds: list[float], entering: list[float]) -> Table:
    """Return the table of one link and device count; a path's run is `name` and its row."""
    shape = (len(seconds), 1, 1, 1)
    return Table(
        np.array(seconds).reshape(shape),
        np.array(entering).reshape(shape),
        lambda row, *_: EdgeRun(10 * name + row),
    )


def lanes_of_three() -> BranchLanes:
    """Return three sequential branches, with the second in parallel on one of two device counts."""
    lanes = BranchLanes(
        [
            BranchPartition((0, 1, 2), (), (2,)),
            BranchPartition((0, 2), (1,), (1, 0)),
            BranchPartition((0, 2), (1,), (1, 1)),
        ]
    )
    # Branch 0 takes 4 with a final transition of 1, or 6 without one.
    own = {
        0: ([4.0, 6.0], [1.0, 0.0]), 1: ([5.0], [2.0]), 2: ([1.0], [0.0])
    }  # fmt: skip
    lanes.tables = [
        table(number, *own[branch]) for number, (branch, _, _) in enumerate(lanes.wanted)
    ]
    return lanes


def test_each_branch_is_wanted_once_per_cap_and_kind_of_lane():
    lanes = lanes_of_three()
    assert len(lanes.wanted) == len(set(lanes.wanted))
    for number, division in enumerate(lanes.divisions):
        cap, *caps = division.allotments
        expected = [(branch, False, cap) for branch in division.main]
        expected += [(b, True, c) for b, c in zip(division.parallel, caps, strict=True)]
        assert [lanes.wanted[index] for index in lanes.index[number]] == expected
        assert lanes.main[number].tolist() == [not parallel for _, parallel, _ in expected]
    assert lanes.num_ways == 3 * 2 and lanes.branches == 3


def test_tables_are_filled_up_with_ways_that_there_are_not():
    lanes = lanes_of_three()
    seconds, entering = lanes.stacked()
    assert seconds.shape == entering.shape == (len(lanes.wanted), 2, 1)
    for number, (branch, _, _) in enumerate(lanes.wanted):
        rows = 2 if branch == 0 else 1
        np.testing.assert_array_equal(np.isfinite(seconds[number, :, 0]), np.arange(2) < rows)
        np.testing.assert_array_equal(np.isfinite(entering[number, :, 0]), np.arange(2) < rows)


@pytest.mark.parametrize(("number", "expected"), [(0, (3 + 3 + 1) + 3), (1, (3 + 1) + 3)])
def test_a_division_takes_its_longest_lane_and_what_enters(number, expected):
    lanes = lanes_of_three()
    seconds, entering = (x[lanes.index][:, :, 0] for x in lanes.stacked())  # [D, k, C]
    assert lanes.joined(seconds, entering)[number, 0] == expected
    some = np.array([number, number])
    joined = lanes.joined(seconds[some, :, 0], entering[some, :, 0], some)
    assert joined.tolist() == [expected] * 2


def test_a_division_is_run_by_the_rows_of_its_branches():
    lanes = lanes_of_three()
    counts = np.array([1, 2, 4])
    rows = np.array([1, 0, 0])
    names = [10 * int(index) + row for index, row in zip(lanes.index[2], (1, 0, 0), strict=True)]
    first, second, apart = map(EdgeRun, names)
    assert lanes.run(2, rows, (0, 0, 0), counts) == BlockRun((first, second), (apart,), (2, 2))
    assert lanes.run(0, rows, (0, 0, 0), counts).allotments == (4,)
