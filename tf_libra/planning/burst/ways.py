"""Ways through a part of a graph: what they take, and what they bring in at their end.

Into a layer where branches join transitions come one after the other, when all branches are done.
So what branches take together is what all bring in, and on top the most that one lane takes before
it brings in anything. Of two ways between the same layers one is never needed that takes no less
and brings in no less than the other.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_libra.planning.burst.bundles import Indices
from tf_libra.planning.burst.costs import Array
from tf_libra.planning.burst.decisions import Run

# Ways whose seconds differ by less are as good as equal.
EQUAL = 1e-13


@dataclass(frozen=True)
class Table:
    """The ways along each link of a bundle, from g devices to h, that may be needed.

    Attributes:
      seconds: with what is brought in at the end, as if nothing else led to the target, shape
        [R, B, G, G]; infinite where there are fewer ways.
      entering: transitions into the link's target, among the seconds, shape [R, B, G, G].
      run: what way r along link b from position g to position h is.
    """

    seconds: Array
    entering: Array
    run: Callable[[int, int, int, int], Run]


def beside(seconds: Array, entering: Array, other_seconds: Array, other_entering: Array) -> Array:
    """What two ways take that run beside each other and end at the same layer; see `Table`."""
    return np.maximum(seconds + other_entering, other_seconds + entering)


def together(seconds: Array, entering: Array, main: NDArray[np.bool_], axis: int) -> Array:
    """What ways take together that end at the same layer; see `Table`.

    Args:
      seconds: of each branch's way.
      entering: what it brings in at its end.
      main: whether it runs with the main lane, one after the other, or beside; of the same shape.
      axis: the branches'.
    """
    before = _before_entering(seconds, entering)
    lane = np.where(main, before, 0.0).sum(axis=axis)
    return np.maximum(lane, np.where(main, 0.0, before).max(axis=axis)) + entering.sum(axis=axis)


def _before_entering(seconds: Array, entering: Array) -> Array:
    """What ways take before they bring in anything; infinite where there is none."""
    before = np.full(seconds.shape, np.inf)
    np.subtract(seconds, entering, out=before, where=np.isfinite(seconds))
    return before


@dataclass(frozen=True)
class Kept:
    """Ways as in `Table`, and which row each was before, shape [R, ...]; None: the same."""

    seconds: Array
    entering: Array
    rows: Indices | None

    def row(self, row: int, link: int, source: int, count: int) -> int:
        """Which row a way was."""
        return row if self.rows is None else int(self.rows[row, link, source, count])


def frontier(seconds: Array, entering: Array) -> Kept:
    """Keeps per place the ways that none beats in both; what enters rises with the row."""
    shape = seconds.shape[1:]
    seconds, entering = seconds.reshape(len(seconds), -1), entering.reshape(len(entering), -1)
    at = np.arange(seconds.shape[1])
    order = np.argsort(entering, axis=0, kind="stable")
    seconds, entering = seconds[order, at], entering[order, at]
    least = np.minimum.accumulate(seconds, axis=0)
    keep = np.isfinite(seconds)
    keep[1:] &= seconds[1:] < least[:-1] * (1 - EQUAL)
    size = max(1, int(keep.sum(axis=0).max()))
    place = np.argsort(~keep, axis=0, kind="stable")[:size]
    kept = keep[place, at]
    return Kept(
        np.where(kept, seconds[place, at], np.inf).reshape(size, *shape),
        np.where(kept, entering[place, at], np.inf).reshape(size, *shape),
        order[place, at].reshape(size, *shape),
    )


def _finite(seconds: Array, entering: Array) -> Kept:
    """Keeps the ways that there are, shape [R, M]."""
    keep = np.isfinite(seconds)
    rows = np.argsort(~keep, axis=0, kind="stable")[: max(1, int(keep.sum(axis=0).max()))]
    seconds, entering = (np.take_along_axis(x, rows, 0) for x in (seconds, entering))
    return Kept(seconds, np.where(np.isfinite(seconds), entering, np.inf), rows)


def rows_of(kept: Kept) -> Indices:
    """Which row each way was."""
    assert kept.rows is not None
    return kept.rows


def better(one: Kept, other: Kept) -> Kept:
    """Keeps of both what none beats in both."""
    return frontier(
        np.concatenate([one.seconds, other.seconds]), np.concatenate([one.entering, other.entering])
    )


def combined(
    seconds: Array, entering: Array, main: NDArray[np.bool_], limits: Array, known: Array
) -> tuple[Array, Indices]:
    """The quickest choice of a row per branch whose sum of what enters keeps to a limit.

    Args:
      seconds: per case, branch and row, as in `Table`, shape [M, k, R].
      entering: the same of what enters.
      main: whether the branch runs with the main lane, else beside it, [M, k]; those that do first.
      limits: shape [M].
      known: seconds that a choice must be below to be of interest, shape [M].

    Returns:
      Seconds, infinite where there is none, shape [M], and the rows, shape [k, M].
    """
    found = np.full(len(seconds), np.inf)
    rows = np.zeros((seconds.shape[1], len(seconds)), np.intp)
    counts = main.sum(axis=1)
    for count in np.unique(counts):
        these = np.flatnonzero(counts == count)
        found[these], rows[:, these] = _with_main(
            seconds[these], entering[these], int(count), limits[these], known[these]
        )
    return found, rows


def _with_main(
    seconds: Array, entering: Array, main: int, limits: Array, known: Array
) -> tuple[Array, Indices]:
    """As `combined`, where the first `main` branches of every case are the main lane's."""
    cases = len(seconds)
    at = np.arange(cases)
    # What the branches from b on add and bring in at least.
    brings = entering.min(axis=2)
    least = np.concatenate([seconds[:, :main].min(axis=2), brings[:, main:]], axis=1)
    added, brought = (x[:, ::-1].cumsum(axis=1)[:, ::-1].T for x in (least, brings))
    # What takes too long even if all others bring in the least is not needed.
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
    found, taken = _beside_each_other([(lane.seconds.T, lane.entering.T) for lane in lanes], limits)
    return found, np.stack([pick[taken[max(0, b - main + 1)], at] for b, pick in enumerate(picks)])


def _beside_each_other(
    lanes: list[tuple[Array, Array]], limits: Array
) -> tuple[Array, list[Indices]]:
    """The quickest choice of a row per lane whose sum of what enters keeps to a limit.

    What is best if no lane may take more than J before it brings in anything is that each brings in
    the least that it can until J. So J is tried, from one row's to the next.

    Args:
      lanes: seconds and what enters per case and row, [M, R].
      limits: shape [M].

    Returns:
      Seconds, infinite where there is none, and each lane's rows, shapes [M].
    """
    before = [_before_entering(*lane) for lane in lanes]
    every = np.concatenate(before, axis=1)
    order = np.argsort(every, axis=1, kind="stable")
    until = np.take_along_axis(every, order, axis=1)
    starts = np.cumsum([0, *(one.shape[1] for one in before)])
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
        np.where(one <= limit, entering, np.inf).argmin(axis=1)
        for one, (_, entering) in zip(before, lanes, strict=True)
    ]
    return np.take_along_axis(total, best, axis=1)[:, 0], taken
