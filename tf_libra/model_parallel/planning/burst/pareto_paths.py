"""Pareto-optimal paths through a part of a graph, by time and by final transition.

Transitions into a joining layer run one after the other once all branches are done. The branches
together therefore take the longest lane before its final transition, plus all final transitions. A
path is dominated if another path between the same layers is at least as good in time and in final
transition.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_libra.model_parallel.planning.burst.costs import Array
from tf_libra.model_parallel.planning.burst.edge_batches import Indices
from tf_libra.model_parallel.planning.burst.strategy import Run

# Relative tolerance of equal seconds.
EQUAL = 1e-13


@dataclass(frozen=True)
class Table:
    """Undominated paths along each link of a bundle, from g devices to h.

    Attributes:
      seconds: seconds with the final transition, as if the target had no other input, shape
        [R, B, G, G]; infinite in unused rows.
      entering: seconds of the transition into the link's target, part of `seconds`, same shape.
      run: returns path r along link b from position g to position h.
    """

    seconds: Array
    entering: Array
    run: Callable[[int, int, int, int], Run]


def in_parallel(
    seconds: Array, entering: Array, other_seconds: Array, other_entering: Array
) -> Array:
    """Combine two parallel paths to the same layer; see `Table`."""
    return np.maximum(seconds + other_entering, other_seconds + entering)


def together(seconds: Array, entering: Array, main: NDArray[np.bool_], axis: int) -> Array:
    """Combine the paths of branches to the same layer; see `Table`.

    Args:
      seconds: seconds of each branch's path.
      entering: its final transition.
      main: True for branches of the sequential main lane, False for parallel ones; same shape.
      axis: axis of the branches.
    """
    before = _before_entering(seconds, entering)
    lane = np.where(main, before, 0.0).sum(axis=axis)
    return np.maximum(lane, np.where(main, 0.0, before).max(axis=axis)) + entering.sum(axis=axis)


def _before_entering(seconds: Array, entering: Array) -> Array:
    """Return seconds before the final transition; infinite for unused rows."""
    before = np.full(seconds.shape, np.inf)
    np.subtract(seconds, entering, out=before, where=np.isfinite(seconds))
    return before


@dataclass(frozen=True)
class ParetoSet:
    """Selected paths as in `Table`, with their previous rows [R, ...]; None: unchanged."""

    seconds: Array
    entering: Array
    rows: Indices | None

    def row(self, row: int, link: int, source: int, count: int) -> int:
        """Return the previous row of a path."""
        return row if self.rows is None else int(self.rows[row, link, source, count])


def frontier(seconds: Array, entering: Array) -> ParetoSet:
    """Select the undominated paths per cell, by ascending final transition."""
    shape = seconds.shape[1:]
    seconds, entering = seconds.reshape(len(seconds), -1), entering.reshape(len(entering), -1)
    at = np.arange(seconds.shape[1])
    order = np.argsort(entering, axis=0, kind="stable")
    seconds, entering = seconds[order, at], entering[order, at]
    least = np.minimum.accumulate(seconds, axis=0)
    keep = np.isfinite(seconds)
    keep[1:] &= seconds[1:] < least[:-1] * (1 - EQUAL)
    size = max(1, int(keep.sum(axis=0).max()))
    chosen = np.argsort(~keep, axis=0, kind="stable")[:size]
    selected = keep[chosen, at]
    return ParetoSet(
        np.where(selected, seconds[chosen, at], np.inf).reshape(size, *shape),
        np.where(selected, entering[chosen, at], np.inf).reshape(size, *shape),
        order[chosen, at].reshape(size, *shape),
    )


def _finite(seconds: Array, entering: Array) -> ParetoSet:
    """Select the finite paths, shape [R, M]."""
    keep = np.isfinite(seconds)
    rows = np.argsort(~keep, axis=0, kind="stable")[: max(1, int(keep.sum(axis=0).max()))]
    seconds, entering = (np.take_along_axis(x, rows, 0) for x in (seconds, entering))
    return ParetoSet(seconds, np.where(np.isfinite(seconds), entering, np.inf), rows)


def rows_of(pareto: ParetoSet) -> Indices:
    """Return the previous row of each path."""
    assert pareto.rows is not None
    return pareto.rows


def better(first: ParetoSet, other: ParetoSet) -> ParetoSet:
    """Select the undominated paths of both."""
    return frontier(
        np.concatenate([first.seconds, other.seconds]),
        np.concatenate([first.entering, other.entering]),
    )


def combined(
    seconds: Array, entering: Array, main: NDArray[np.bool_], limits: Array, known: Array
) -> tuple[Array, Indices]:
    """Return the fastest choice of a row per branch whose final transitions are within a limit.

    Args:
      seconds: seconds per case, branch and row, as in `Table`, shape [M, k, R].
      entering: final transitions, same shape.
      main: True for branches of the main lane, which come first, shape [M, k].
      limits: limits on the sum of final transitions, shape [M].
      known: seconds of the incumbents, shape [M].

    Returns:
      Seconds, infinite without a choice, shape [M], and the rows, shape [k, M].
    """
    found = np.full(len(seconds), np.inf)
    rows = np.zeros((seconds.shape[1], len(seconds)), np.intp)
    counts = main.sum(axis=1)
    for count in np.unique(counts):
        same_count = np.flatnonzero(counts == count)
        found[same_count], rows[:, same_count] = _with_main(
            seconds[same_count],
            entering[same_count],
            int(count),
            limits[same_count],
            known[same_count],
        )
    return found, rows


def _with_main(
    seconds: Array, entering: Array, main: int, limits: Array, known: Array
) -> tuple[Array, Indices]:
    """Run `combined` for cases whose first `main` branches are the main lane's."""
    cases = len(seconds)
    at = np.arange(cases)
    # Least seconds and final transitions of the branches from b on.
    brings = entering.min(axis=2)
    least = np.concatenate([seconds[:, :main].min(axis=2), brings[:, main:]], axis=1)
    added, brought = (x[:, ::-1].cumsum(axis=1)[:, ::-1].T for x in (least, brings))
    # Prune rows that are too slow even with the least values of all other branches.
    others = least.sum(axis=1)[:, None] - least
    others[:, main:] = (brings.sum(axis=1)[:, None] - brings)[:, main:]
    seconds = np.where(seconds + others[:, :, None] < known[:, None, None], seconds, np.inf)
    if main == 1:
        lane = _finite(seconds[:, 0].T, entering[:, 0].T)
    else:
        lane = frontier(seconds[:, 0].T, entering[:, 0].T)
    picks = [rows_of(lane)]
    for branch in range(1, main):
        other = frontier(seconds[:, branch].T, entering[:, branch].T)
        size = len(other.seconds)
        joined = (lane.seconds[:, None] + other.seconds).reshape(-1, cases)
        sums = (lane.entering[:, None] + other.entering).reshape(-1, cases)
        room, below = limits * (1 + EQUAL), known
        if branch + 1 < seconds.shape[1]:
            room, below = room - brought[branch + 1], known - added[branch + 1]
        lane = frontier(np.where((sums <= room) & (joined < below), joined, np.inf), sums)
        picks = [pick[rows_of(lane) // size, at] for pick in picks]
        picks.append(rows_of(other)[rows_of(lane) % size, at])
    lanes = [lane]
    for branch in range(main, seconds.shape[1]):
        lanes.append(_finite(seconds[:, branch].T, entering[:, branch].T))
        picks.append(rows_of(lanes[-1]))
    found, taken = _parallel_lanes([(lane.seconds.T, lane.entering.T) for lane in lanes], limits)
    return found, np.stack([pick[taken[max(0, b - main + 1)], at] for b, pick in enumerate(picks)])


def _parallel_lanes(lanes: list[tuple[Array, Array]], limits: Array) -> tuple[Array, list[Indices]]:
    """Return the fastest choice of a row per parallel lane with final transitions within a limit.

    If every lane may take at most J before its final transition, each lane takes its least final
    transition within J. The search therefore tries J at the values of all rows.

    Args:
      lanes: seconds and final transitions per case and row, [M, R].
      limits: limits on the sum of final transitions, shape [M].

    Returns:
      Seconds, infinite without a choice, and each lane's rows, shapes [M].
    """
    before = [_before_entering(*lane) for lane in lanes]
    every = np.concatenate(before, axis=1)
    order = np.argsort(every, axis=1, kind="stable")
    until = np.take_along_axis(every, order, axis=1)
    starts = np.cumsum([0, *(paths.shape[1] for paths in before)])
    sums = np.zeros(until.shape)
    for (_, entering), start, stop in zip(lanes, starts[:-1], starts[1:], strict=True):
        own = np.full(until.shape, np.inf)
        own[:, start:stop] = entering
        own = np.take_along_axis(own, order, axis=1)
        sums += np.minimum.accumulate(own, axis=1)
    total = np.where(sums <= limits[:, None], until + sums, np.inf)
    best = total.argmin(axis=1)[:, None]
    limit = np.take_along_axis(until, best, axis=1)
    taken = [
        np.where(paths <= limit, entering, np.inf).argmin(axis=1)
        for paths, (_, entering) in zip(before, lanes, strict=True)
    ]
    return np.take_along_axis(total, best, axis=1)[:, 0], taken
