"""Pareto paths through a block, and their best combination, compared with brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import num_examples
from tf_libra.model_parallel.planning.burst.pareto_paths import (
    better,
    combined,
    frontier,
    in_parallel,
    together,
)


@st.composite
def ways(draw, *, branches):
    """Draw seconds and final transitions, [M, k, R]; a branch has a path, and ties are common."""
    cases, rows = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    grain = draw(st.sampled_from([2, 5, 1000]))
    entering, before = rng.integers(0, grain + 1, (2, cases, branches, rows)) / grain
    missing = rng.random(entering.shape) < 0.3
    missing[:, :, 0] = False
    order = rng.permuted(np.broadcast_to(np.arange(rows), entering.shape), axis=2)
    missing = np.take_along_axis(missing, order, 2)
    return np.where(missing, np.inf, before + entering), np.where(missing, np.inf, entering)


def takes(seconds, entering, main):
    """Return the time of branches: parallel lanes, then the final transitions in sequence."""
    before = [s - e for s, e in zip(seconds, entering, strict=True)]
    lane = sum(b for b, is_main in zip(before, main, strict=True) if is_main)
    apart = [b for b, is_main in zip(before, main, strict=True) if not is_main]
    return max([lane, *apart]) + sum(entering)


@given(ways(branches=3), st.integers(1, 3))
def test_branches_take_the_longest_lane_and_then_all_that_enters(drawn, num_main):
    main = np.arange(3) < num_main
    for seconds, entering in zip(*(x[:, :, 0] for x in drawn), strict=True):
        found = float(together(seconds, entering, main, axis=0))
        if np.isinf(seconds).any():
            assert found == np.inf
        else:
            assert found == pytest.approx(takes(seconds, entering, main))


@given(ways(branches=2))
def test_two_ways_parallel_lanes_are_as_many_are(drawn):
    seconds, entering = (x[:, :, 0] for x in drawn)
    found = in_parallel(seconds[:, 0], entering[:, 0], seconds[:, 1], entering[:, 1])
    main = np.broadcast_to([True, False], seconds.shape)
    assert found == pytest.approx(together(seconds, entering, main, axis=1))


def check_frontier(pareto, seconds, entering):
    """Check that no selected path dominates another, and that dropped paths are dominated."""
    for cell in np.ndindex(seconds.shape[1:]):
        column = (slice(None), *cell)
        there = np.isfinite(pareto.seconds[column])
        assert not there[1:][~there[:-1]].any()  # padding is at the end
        pairs = list(
            zip(pareto.entering[column][there], pareto.seconds[column][there], strict=True)
        )
        for first, other in itertools.pairwise(pairs):
            assert first[0] <= other[0] and first[1] > other[1]
        for e, s in zip(entering[column], seconds[column], strict=True):
            if np.isfinite(s):
                assert any(a <= e and b <= s * (1 + 1e-12) for a, b in pairs)
        assert np.isinf(pareto.entering[column][~there]).all()


@given(ways(branches=2))
def test_pareto_entries_have_their_original_row(drawn):
    seconds, entering = (x.transpose(2, 0, 1) for x in drawn)  # [R, M, k]
    pareto = frontier(seconds, entering)
    check_frontier(pareto, seconds, entering)
    for row, *cell in zip(*np.nonzero(np.isfinite(pareto.seconds)), strict=True):
        was = int(pareto.rows[row, *cell])
        assert seconds[was, *cell] == pareto.seconds[row, *cell]
        assert entering[was, *cell] == pareto.entering[row, *cell]


@given(ways(branches=2))
def test_union_of_two_frontiers_is_the_frontier_of_all_entries(drawn):
    seconds, entering = (x.transpose(2, 1, 0) for x in drawn)  # [R, k, M]
    first, other = (frontier(seconds[:, k], entering[:, k]) for k in range(2))
    every = (np.concatenate([x[:, 0], x[:, 1]]) for x in (seconds, entering))
    check_frontier(better(first, other), *every)


@st.composite
def choices(draw):
    branches = draw(st.integers(1, 4))
    seconds, entering = draw(ways(branches=branches))
    mains = st.lists(st.integers(1, branches), min_size=len(seconds), max_size=len(seconds))
    main = np.arange(branches) < np.array(draw(mains))[:, None]
    limits = draw(st.sampled_from([0.0, 0.5, 1.0, 1.7, 2.5, np.inf]))
    known = draw(st.sampled_from([0.8, 1.5, 3.0, np.inf]))
    return seconds, entering, main, np.full(len(seconds), limits), np.full(len(seconds), known)


@settings(max_examples=num_examples(300))
@given(choices())
def test_the_quickest_rows_that_keep_to_a_limit_are_found(drawn):
    """Rows are found if any are quicker than the known time, and are arbitrary otherwise."""
    seconds, entering, main, limits, known = drawn
    found, rows = combined(*drawn)
    branches = range(seconds.shape[1])
    for case in range(len(seconds)):
        possible = [np.flatnonzero(np.isfinite(seconds[case, b])) for b in branches]
        every = [
            takes(seconds[case, branches, chosen], entering[case, branches, chosen], main[case])
            for chosen in itertools.product(*possible)
            if entering[case, branches, chosen].sum() <= limits[case] + 1e-9
        ]
        best = min(every, default=np.inf)
        if best < known[case] - 1e-9:
            assert found[case] == pytest.approx(best)
            own = seconds[case, branches, rows[:, case]], entering[case, branches, rows[:, case]]
            assert takes(*own, main[case]) == pytest.approx(best)
            assert own[1].sum() <= limits[case] + 1e-9
        else:
            assert found[case] >= best - 1e-9
