"""Blocks of parallel branches as steps of a shortest path (DeepPool 4.2, multi-chain reduction).

A block lies between a layer on g devices and one on h. Its branches run one after the other on the
devices around it, or some of them beside the others, each on an allotment of devices of its own,
to which samples have to be moved and from which they come back. Allotments are of the allowed
numbers, and together no more than the block may use. The block takes as long as its longest lane.

All transitions into the layer where branches join come in there and count in its amplification. So
a branch is no single number of seconds: a longer way through it may bring in less at its end. A
`Table` keeps, per (g, h), every way that none beats in both.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tf_libra.planning.burst.blocks import Block, Chain, Edge, Link
from tf_libra.planning.burst.costs import Array, Costs
from tf_libra.planning.burst.decisions import BlockRun, ChainRun, EdgeRun, Run

# Ways whose seconds differ by less are as good as equal.
_EQUAL = 1e-13
# Divisions of a block's branches into lanes that are looked at.
_MAX_DIVISIONS = 4096
# Rows of a table from which on it is worth while to look for those that are not needed.
_MANY = 16
# Choices of rows that are tried without further thought.
_FEW = 128
# Cases that are looked at together.
_CHUNK = 4096

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Table:
    """The ways along a link, from g devices to h, that may be needed.

    Attributes:
      seconds: shape [R, G, G]; infinite where there are fewer ways.
      entering: transitions into the link's target, among the seconds, shape [R, G, G].
      run: what way r from position g to position h is.
    """

    seconds: Array
    entering: Array
    run: Callable[[int, int, int], Run]


@dataclass(frozen=True)
class Step:
    """A link and its target: the quickest allowed way, shape [G, G], and which row it is."""

    seconds: Array
    rows: Indices | None


@dataclass(frozen=True)
class _Division:
    """Which branches run beside the others, and the positions of the lanes' allotments."""

    main: tuple[int, ...]
    beside: tuple[int, ...]
    allotments: tuple[int, ...]


@dataclass(frozen=True)
class _Place:
    """Where a link lies.

    Attributes:
      cap: position of the largest number of devices that its layers may have.
      left, right: whether its beginning or end leads from or to other devices.
    """

    cap: int
    left: bool = False
    right: bool = False


@dataclass
class Branches:
    """Tables and steps of all links under one limit, each made once."""

    costs: Costs
    notes: list[str] = field(default_factory=list)
    _tables: dict[tuple[int, _Place, bool], Table] = field(default_factory=dict)
    _steps: dict[tuple[int, _Place], Step] = field(default_factory=dict)
    _shared: dict[tuple[int, int], list[tuple[int, ...]]] = field(default_factory=dict)

    def step(self, link: Link, target: int, cap: int) -> Step:
        """Returns the step along a link between layers of one lane; see `_Place.cap`."""
        return self._step(link, target, _Place(cap))

    def step_run(self, link: Link, target: int, cap: int, source: int, count: int) -> Run:
        """Returns what that step is, from position `source` to position `count`."""
        return self._step_run(link, target, _Place(cap), source, count)

    def _step(self, link: Link, target: int, place: _Place) -> Step:
        if isinstance(link, Edge):
            moved = place.left or place.right
            return Step(self.costs.step(link.index, target, moved), None)
        key = (id(link), place)
        if key not in self._steps:
            table = self._table(link, target, place, closed=True)
            seconds = np.where(self.costs.allowed(target, table.entering), table.seconds, np.inf)
            least = seconds.min(axis=0) + self.costs.own[target]
            self._steps[key] = Step(least, seconds.argmin(axis=0))
        return self._steps[key]

    def _step_run(self, link: Link, target: int, place: _Place, source: int, count: int) -> Run:
        if isinstance(link, Edge):
            return EdgeRun(link.index)
        rows = self._step(link, target, place).rows
        assert rows is not None
        table = self._table(link, target, place, closed=True)
        return table.run(int(rows[source, count]), source, count)

    def _table(self, link: Link, target: int, place: _Place, closed: bool) -> Table:
        """Returns a link's ways; `closed`: nothing else leads to its target."""
        if isinstance(link, Edge):
            seconds = self.costs.edge(link.index, place.left or place.right)[None]
            run = EdgeRun(link.index)
            return Table(seconds, seconds, lambda row, source, count: run)
        key = (id(link), place, closed)
        if key not in self._tables:
            if isinstance(link, Chain):
                self._tables[key] = self._chain(link, target, place, closed)
            else:
                self._tables[key] = self._block(link, target, place, closed)
        return self._tables[key]

    def _chain(self, chain: Chain, target: int, place: _Place, closed: bool) -> Table:
        allowed = place.cap + 1
        inside = _Place(place.cap)
        entry = _Place(place.cap, left=place.left)
        best = self._step(chain.links[0], chain.layers[0], entry).seconds[:, :allowed]
        taken: list[tuple[Array, Array]] = []
        for link, layer in zip(chain.links[1:-1], chain.layers[1:], strict=True):
            step = self._step(link, layer, inside).seconds[:allowed, :allowed]
            taken.append((best, step))
            best = (best[:, :, None] + step).min(axis=1)
        exit_place = _Place(place.cap, right=place.right)
        last = self._table(chain.links[-1], target, exit_place, closed)
        ways, size = len(last.seconds), len(self.costs.counts)
        seconds = (
            best.T[:, None, :, None] + last.seconds[:, :allowed].transpose(1, 0, 2)[:, :, None]
        )
        entering = np.empty_like(seconds)
        entering[:] = last.entering[:, :allowed].transpose(1, 0, 2)[:, :, None]
        kept = _Kept(seconds.reshape(-1, size, size), entering.reshape(-1, size, size), None)
        if len(kept.seconds) > _MANY:
            kept = _frontier(*self._possible(target, kept.seconds, kept.entering))

        def run(row: int, source: int, count: int) -> Run:
            position, way = divmod(kept.row(row, source, count), ways)
            counts = [position]
            for before, step in reversed(taken):
                counts.append(int((before[source] + step[:, counts[-1]]).argmin()))
            counts.reverse()
            runs = [self._step_run(chain.links[0], chain.layers[0], entry, source, counts[0])]
            for index, link in enumerate(chain.links[1:-1]):
                pair = counts[index], counts[index + 1]
                runs.append(self._step_run(link, chain.layers[index + 1], inside, *pair))
            runs.append(last.run(way, position, count))
            return ChainRun(chain.layers, tuple(counts), tuple(runs))

        return Table(kept.seconds, kept.entering, run)

    def _possible(self, target: int, seconds: Array, entering: Array) -> tuple[Array, Array]:
        """Leaves out ways that alone bring in more than the target's limit allows."""
        possible = self.costs.allowed(target, entering)
        return np.where(possible, seconds, np.inf), np.where(possible, entering, np.inf)

    def _block(self, block: Block, target: int, place: _Place, closed: bool) -> Table:
        lanes = _Lanes(self._divisions(block, place.cap), len(self.costs.counts))
        for branch, beside, cap in lanes.wanted:
            inner = _Place(cap, place.left or beside, place.right or beside)
            lanes.tables.append(self._table(block.branches[branch], target, inner, closed=False))
        if closed:
            if lanes.num_ways <= _FEW:
                return self._together(lanes, self.costs.budget(target))
            return self._closed(lanes, self.costs.budget(target))
        return self._open(lanes, target)

    def _together(self, lanes: "_Lanes", budget: Array) -> Table:
        """There are few ways: every division and choice of a row per branch is tried."""
        every_seconds, every_entering = [], []
        for index, main in zip(lanes.index, lanes.main, strict=True):
            seconds, entering = lanes.tables[index[0]].seconds, lanes.tables[index[0]].entering
            for position in range(1, lanes.branches):
                table = lanes.tables[index[position]]
                join = np.add if main[position] else np.maximum
                shape = (-1, *seconds.shape[1:])
                seconds = join(seconds[:, None], table.seconds).reshape(shape)
                entering = (entering[:, None] + table.entering).reshape(shape)
            every_seconds.append(seconds)
            every_entering.append(entering)
        seconds, entering = np.concatenate(every_seconds), np.concatenate(every_entering)
        seconds = np.where(entering <= budget, seconds, np.inf)
        rows = seconds.argmin(axis=0)
        places = np.arange(rows.size)

        def run(row: int, source: int, count: int) -> Run:
            way, number = int(rows[source, count]), 0
            while way >= len(every_seconds[number]):
                way -= len(every_seconds[number])
                number += 1
            sizes = [len(lanes.tables[index].seconds) for index in lanes.index[number]]
            chosen = np.array(np.unravel_index(way, sizes))
            return lanes.run(number, chosen, source, count, self.costs.counts)

        brought = entering.reshape(len(entering), -1)[rows.ravel(), places]
        return Table(seconds.min(axis=0)[None], brought.reshape(1, *rows.shape), run)

    def _closed(self, lanes: "_Lanes", budget: Array) -> Table:
        """Nothing else leads to the target: per (g, h) the one quickest way within its budget.

        Each division is first judged by what its branches could do at best. Where the quickest rows
        together keep the budget, that is what they do; else each branch is given all that the
        others can leave, and only if they then still want too much, the rows are combined.
        """
        size = len(self.costs.counts)
        cells = size * size
        seconds, entering = lanes.stacked()
        limits = np.broadcast_to(budget, (size, size)).reshape(cells)
        best = np.full(cells, np.inf)
        division = np.zeros(cells, np.intp)
        rows = np.zeros((lanes.branches, cells), np.intp)

        def offer(found: Array, which: Indices, at: Indices, taken: Indices) -> None:
            """Takes what is quicker than what is known: seconds, divisions, cells, rows [k, M]."""
            order = np.lexsort((found, at))
            first = np.ones(len(order), bool)
            first[1:] = at[order[1:]] != at[order[:-1]]
            chosen = order[first]
            chosen = chosen[found[chosen] < best[at[chosen]]]
            best[at[chosen]] = found[chosen]
            division[at[chosen]] = which[chosen]
            rows[:, at[chosen]] = taken[:, chosen]

        quick = seconds.argmin(axis=1)  # [P, C]
        least = np.take_along_axis(seconds, quick[:, None], 1)[:, 0]
        brings = np.take_along_axis(entering, quick[:, None], 1)[:, 0]
        fewest = entering.min(axis=1)
        bound = lanes.joined(least[lanes.index], axis=1)  # [D, C]
        possible = np.isfinite(bound) & (fewest[lanes.index].sum(axis=1) <= limits)
        fits = possible & (brings[lanes.index].sum(axis=1) <= limits)
        which, at = np.nonzero(fits)
        offer(bound[fits], which, at, quick[lanes.index[which], at[:, None]].T)

        which, at = np.nonzero(possible & ~fits & (bound < best * (1 - _EQUAL)))
        for start in range(0, len(which), _CHUNK):
            d, c = which[start : start + _CHUNK], at[start : start + _CHUNK]
            d, c = d[bound[d, c] < best[c]], c[bound[d, c] < best[c]]
            index = lanes.index[d]  # [M, k]
            way_seconds = seconds[index, :, c[:, None]]  # [M, k, R]
            way_entering = entering[index, :, c[:, None]]
            fewest_here = way_entering.min(axis=2)
            left = limits[c][:, None] - fewest_here.sum(axis=1, keepdims=True) + fewest_here
            # The slack of rounding is what a sum in another order may differ by.
            left = left + _EQUAL * np.abs(limits[c])[:, None]
            way_seconds = np.where(way_entering <= left[:, :, None], way_seconds, np.inf)
            taken = way_seconds.argmin(axis=2)
            quickest = np.take_along_axis(way_seconds, taken[:, :, None], 2)[:, :, 0]
            together = np.take_along_axis(way_entering, taken[:, :, None], 2)[:, :, 0].sum(axis=1)
            joined = lanes.joined(quickest, division=d, axis=1)
            fit = np.isfinite(joined) & (together <= limits[c])
            offer(joined[fit], d[fit], c[fit], taken[fit].T)
            hard = np.isfinite(joined) & ~fit & (joined < best[c] * (1 - _EQUAL))
            if hard.any():
                d, c = d[hard], c[hard]
                found, taken = _combined(
                    way_seconds[hard], way_entering[hard], lanes.main[d], limits[c], best[c]
                )
                fit = np.isfinite(found)
                offer(found[fit], d[fit], c[fit], taken[:, fit])
        shape = (1, size, size)
        brought = entering[lanes.index[division].T, rows, np.arange(cells)].sum(axis=0)

        def run(row: int, source: int, count: int) -> Run:
            cell = source * size + count
            return lanes.run(int(division[cell]), rows[:, cell], source, count, self.costs.counts)

        return Table(best.reshape(shape), brought.reshape(shape), run)

    def _open(self, lanes: "_Lanes", target: int) -> Table:
        """Something else leads to the target, too: every undominated way."""
        found: list[tuple[int, _Kept, list[Indices]]] = []
        incumbent: _Kept | None = None
        for number in range(len(lanes.divisions)):
            tables = [lanes.tables[index] for index in lanes.index[number]]
            main = lanes.main[number]
            if incumbent is not None and self._beaten(tables, main, target, incumbent):
                continue
            kept = _Kept(tables[0].seconds, tables[0].entering, None)
            picks: list[Indices] = [
                np.broadcast_to(np.arange(len(kept.seconds))[:, None, None], kept.seconds.shape)
            ]
            for table, beside in zip(tables[1:], ~main[1:], strict=True):
                ways = len(table.seconds)
                join = np.maximum if beside else np.add
                shape = (-1, *kept.seconds.shape[1:])
                seconds = join(kept.seconds[:, None], table.seconds[None]).reshape(shape)
                entering = (kept.entering[:, None] + table.entering[None]).reshape(shape)
                kept = _frontier(*self._possible(target, seconds, entering))
                picks = [np.take_along_axis(pick, _rows(kept) // ways, 0) for pick in picks]
                picks.append(_rows(kept) % ways)
            found.append((number, kept, picks))
            incumbent = kept if incumbent is None else _better(incumbent, kept)
        final = _frontier(
            np.concatenate([kept.seconds for _, kept, _ in found]),
            np.concatenate([kept.entering for _, kept, _ in found]),
        )
        ends = list(itertools.accumulate(len(kept.seconds) for _, kept, _ in found))

        def run(row: int, source: int, count: int) -> Run:
            place = final.row(row, source, count)
            position = next(i for i, end in enumerate(ends) if place < end)
            number, kept, picks = found[position]
            way = place - (ends[position] - len(kept.seconds))
            taken = np.array([pick[way, source, count] for pick in picks])
            return lanes.run(number, taken, source, count, self.costs.counts)

        return Table(final.seconds, final.entering, run)

    def _beaten(
        self, tables: list[Table], main: NDArray[np.bool_], target: int, incumbent: "_Kept"
    ) -> bool:
        """Whether no way of a division can be better than the incumbent's anywhere."""
        quickest = np.stack([table.seconds.min(axis=0) for table in tables])
        entering = sum(table.entering.min(axis=0) for table in tables)
        seconds = quickest[main].sum(axis=0)
        if not main.all():
            seconds = np.maximum(seconds, quickest[~main].max(axis=0))
        dominated = (incumbent.seconds <= seconds * (1 + _EQUAL)) & (incumbent.entering <= entering)
        beaten = dominated.any(axis=0) | ~np.isfinite(seconds)
        return bool((beaten | ~self.costs.allowed(target, entering)).all())

    def _divisions(self, block: Block, cap: int) -> Iterator[_Division]:
        branches = range(len(block.branches))
        yield _Division(tuple(branches), (), (cap,))
        if not self.costs.can_move:
            return
        movable = [b for b in branches if isinstance(block.branches[b], Chain)]
        counts = [int(count) for count in self.costs.counts]
        looked_at = 1
        for size in range(1, len(branches)):
            if size > len(movable):
                break
            if (cap, size) not in self._shared:
                self._shared[cap, size] = list(_allotments(counts, counts[cap], size + 1))
            allotments = self._shared[cap, size]
            looked_at += math.comb(len(movable), size) * len(allotments)
            if not allotments:
                break
            if looked_at > _MAX_DIVISIONS:
                self.notes.append(
                    f"a block of {len(branches)} branches: at most {size - 1} run beside the others"
                )
                break
            for beside in itertools.combinations(movable, size):
                main = tuple(b for b in branches if b not in beside)
                for allotment in allotments:
                    yield _Division(main, beside, allotment)


class _Lanes:
    """The divisions of a block into lanes, and the tables of its branches in them.

    Attributes:
      divisions: D of them.
      wanted: the P different (branch, beside, cap) among them.
      tables: of `wanted`, in the same order.
      branches: k, the block's.
      index: which table each branch has in a division, the main ones first, shape [D, k].
      main: whether that one runs with the main lane, shape [D, k].
    """

    def __init__(self, divisions: Iterable[_Division], size: int) -> None:
        self.divisions = list(divisions)
        self.tables: list[Table] = []
        self._size = size
        places: dict[tuple[int, bool, int], int] = {}
        index, main = [], []
        for division in self.divisions:
            keys = [(branch, False, division.allotments[0]) for branch in division.main]
            keys += [
                (branch, True, cap)
                for branch, cap in zip(division.beside, division.allotments[1:], strict=True)
            ]
            index.append([places.setdefault(key, len(places)) for key in keys])
            main.append([not beside for _, beside, _ in keys])
        self.wanted = tuple(places)
        self.index, self.main = np.array(index), np.array(main)
        self.branches = self.index.shape[1]

    @property
    def num_ways(self) -> int:
        """Of all divisions, whatever they take."""
        sizes = [len(table.seconds) for table in self.tables]
        return sum(math.prod(sizes[index] for index in division) for division in self.index)

    def stacked(self) -> tuple[Array, Array]:
        """Seconds and what enters, of all tables, filled up to as many rows, [P, R, G * G]."""
        ways = max(len(table.seconds) for table in self.tables)
        shape = (len(self.tables), ways, self._size * self._size)
        seconds, entering = np.full(shape, np.inf), np.full(shape, np.inf)
        for position, table in enumerate(self.tables):
            rows = len(table.seconds)
            seconds[position, :rows] = table.seconds.reshape(rows, -1)
            entering[position, :rows] = table.entering.reshape(rows, -1)
        return seconds, entering

    def joined(self, seconds: Array, axis: int, division: Indices | None = None) -> Array:
        """What a block takes, from seconds per branch: [D, k, C] of all divisions, or [M, k]."""
        main = self.main if division is None else self.main[division]
        if seconds.ndim == 3:
            main = main[:, :, None]
        together = np.where(main, seconds, 0.0).sum(axis=axis)
        return np.maximum(together, np.where(main, 0.0, seconds).max(axis=axis))

    def run(self, number: int, rows: Indices, source: int, count: int, counts: Array) -> BlockRun:
        """What a division is, from the row that each of its branches takes."""
        division = self.divisions[number]
        runs = [
            self.tables[index].run(int(row), source, count)
            for index, row in zip(self.index[number], rows, strict=True)
        ]
        return BlockRun(
            tuple(runs[: len(division.main)]),
            tuple(runs[len(division.main) :]),
            tuple(int(counts[cap]) for cap in division.allotments),
        )


def _combined(
    seconds: Array, entering: Array, main: NDArray[np.bool_], limits: Array, known: Array
) -> tuple[Array, Indices]:
    """The quickest choice of a row per branch whose sum of what enters keeps to a limit.

    Args:
      seconds: per case, branch and row, shape [M, k, R].
      entering: the same of what enters.
      main: whether the branch's seconds are added to those before, else they run beside, [M, k].
      limits: shape [M].
      known: seconds that a choice must be below to be of interest, shape [M].

    Returns:
      Seconds, infinite where there is none, shape [M], and the rows, shape [k, M].
    """
    cases, branches, _ = seconds.shape
    at = np.arange(cases)
    ways = [_frontier(seconds[:, b].T, entering[:, b].T) for b in range(branches)]
    # What the branches from b on add and bring in at least.
    least = seconds.min(axis=2)
    added = np.where(main, least, 0.0)[:, ::-1].cumsum(axis=1)[:, ::-1].T
    brought = entering.min(axis=2)[:, ::-1].cumsum(axis=1)[:, ::-1].T
    kept = ways[0]
    picks = [_rows(kept)]
    for branch in range(1, branches):
        other = ways[branch]
        size = len(other.seconds)
        joined = np.where(
            main[:, branch],
            kept.seconds[:, None] + other.seconds,
            np.maximum(kept.seconds[:, None], other.seconds),
        ).reshape(-1, cases)
        sums = (kept.entering[:, None] + other.entering).reshape(-1, cases)
        last = branch == branches - 1
        room = limits if last else limits * (1 + _EQUAL) - brought[branch + 1]
        below = known if last else known - added[branch + 1]
        joined = np.where((sums <= room) & (joined < below), joined, np.inf)
        if last:
            # Nothing else comes in: only the quickest.
            rows = joined.argmin(axis=0)[None]
            kept = _Kept(joined[rows, at], sums[rows, at], rows)
        else:
            kept = _frontier(joined, sums)
        picks = [pick[_rows(kept) // size, at] for pick in picks]
        picks.append(_rows(other)[_rows(kept) % size, at])
    best = kept.seconds.argmin(axis=0)
    return kept.seconds[best, at], np.stack([pick[best, at] for pick in picks])


@dataclass(frozen=True)
class _Kept:
    """Ways as in `Table`, and which row each was before, shape [R, ...]; None: the same."""

    seconds: Array
    entering: Array
    rows: Indices | None

    def row(self, row: int, source: int, count: int) -> int:
        """Which row a way was."""
        return row if self.rows is None else int(self.rows[row, source, count])


def _frontier(seconds: Array, entering: Array) -> _Kept:
    """Keeps per place the ways that none beats in both; what enters rises with the row."""
    shape = seconds.shape[1:]
    seconds, entering = seconds.reshape(len(seconds), -1), entering.reshape(len(entering), -1)
    at = np.arange(seconds.shape[1])
    order = np.argsort(entering, axis=0, kind="stable")
    seconds, entering = seconds[order, at], entering[order, at]
    least = np.minimum.accumulate(seconds, axis=0)
    keep = np.isfinite(seconds)
    keep[1:] &= seconds[1:] < least[:-1] * (1 - _EQUAL)
    size = max(1, int(keep.sum(axis=0).max()))
    place = np.argsort(~keep, axis=0, kind="stable")[:size]
    kept = keep[place, at]
    return _Kept(
        np.where(kept, seconds[place, at], np.inf).reshape(size, *shape),
        np.where(kept, entering[place, at], np.inf).reshape(size, *shape),
        order[place, at].reshape(size, *shape),
    )


def _rows(kept: _Kept) -> Indices:
    assert kept.rows is not None
    return kept.rows


def _better(one: _Kept, other: _Kept) -> _Kept:
    return _frontier(
        np.concatenate([one.seconds, other.seconds]), np.concatenate([one.entering, other.entering])
    )


def _allotments(counts: list[int], devices: int, lanes: int) -> Iterator[tuple[int, ...]]:
    """Positions of numbers of devices for each lane, of which none could have more.

    A branch with more devices has all the ways that it has with fewer, so others are not needed.
    """

    def divide(left: int, lanes: int) -> Iterator[tuple[int, ...]]:
        for position, count in enumerate(counts):
            if count + lanes - 1 > left:
                return
            if lanes == 1:
                larger = position + 1 < len(counts) and counts[position + 1] <= left
                if not larger:
                    yield (position,)
            else:
                for rest in divide(left - count, lanes - 1):
                    yield (position, *rest)

    for positions in divide(devices, lanes):
        spare = devices - sum(counts[position] for position in positions)
        if all(
            position + 1 == len(counts) or counts[position + 1] - counts[position] > spare
            for position in positions
        ):
            yield positions
