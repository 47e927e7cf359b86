"""Blocks of parallel branches as steps of a shortest path (DeepPool 4.2, multi-chain reduction).

A block lies between a layer on g devices and one on h. Its branches run one after the other on the
devices around it, or some of them beside the others, each on an allotment of devices of its own,
to which samples have to be moved and from which they come back. Allotments are of the allowed
numbers, and together no more than the block may use.

All transitions into the layer where branches join come in there and count in its amplification: on
its devices, one after the other, when the longest lane is done, whose devices these may be. So a
branch is no single number of seconds: a longer way through it may bring in less at its end. A
`Table` keeps, per (g, h), every way that none beats in both (`ways`).
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tf_libra.planning.burst.blocks import Block, Chain, Edge, Link
from tf_libra.planning.burst.costs import Array, Costs
from tf_libra.planning.burst.decisions import ChainRun, EdgeRun, Run
from tf_libra.planning.burst.divisions import Division, Lanes, allotments_of
from tf_libra.planning.burst.ways import (
    EQUAL,
    Indices,
    Kept,
    Table,
    beside,
    better,
    combined,
    frontier,
    rows_of,
    together,
)

# Divisions of a block's branches into lanes that are looked at.
_MAX_DIVISIONS = 4096
# Rows of a table from which on it is worth while to look for those that are not needed.
_MANY = 16
# Choices of rows that are tried without further thought.
_FEW = 128
# Cases that are looked at together.
_CHUNK = 256


@dataclass(frozen=True)
class Step:
    """A link and its target: the quickest allowed way, shape [G, G], and which row it is."""

    seconds: Array
    rows: Indices | None


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
        kept = Kept(seconds.reshape(-1, size, size), entering.reshape(-1, size, size), None)
        if len(kept.seconds) > _MANY:
            kept = frontier(*self._possible(target, kept.seconds, kept.entering))

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
        lanes = Lanes(self._divisions(block, place.cap), len(self.costs.counts))
        for branch, apart, cap in lanes.wanted:
            inner = _Place(cap, place.left or apart, place.right or apart)
            lanes.tables.append(self._table(block.branches[branch], target, inner, closed=False))
        if closed:
            if lanes.num_ways <= _FEW:
                return self._together(lanes, self.costs.budget(target))
            return self._closed(lanes, self.costs.budget(target))
        return self._open(lanes, target)

    def _together(self, lanes: Lanes, budget: Array) -> Table:
        """There are few ways: every division and choice of a row per branch is tried."""
        every_seconds, every_entering = [], []
        for index, main in zip(lanes.index, lanes.main, strict=True):
            seconds, entering = lanes.tables[index[0]].seconds, lanes.tables[index[0]].entering
            for position in range(1, lanes.branches):
                table = lanes.tables[index[position]]
                shape = (-1, *seconds.shape[1:])
                if main[position]:
                    joined = seconds[:, None] + table.seconds
                else:
                    before = seconds[:, None], entering[:, None]
                    joined = beside(*before, table.seconds, table.entering)
                seconds = joined.reshape(shape)
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

    def _closed(self, lanes: Lanes, budget: Array) -> Table:
        """Nothing else leads to the target: per (g, h) the one quickest way within its budget.

        Each division is first judged by what its branches could do at best. Where the quickest rows
        together are that and keep the budget, that is what they do. Else each branch is given all
        that the others can leave, and those that need not be quick bring in as little as they can;
        only if that still is not what they could do at best, the rows are combined.
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
        bound = lanes.joined(least[lanes.index], fewest[lanes.index])  # [D, C]
        possible = np.isfinite(bound) & (fewest[lanes.index].sum(axis=1) <= limits)
        fits = possible & (brings[lanes.index].sum(axis=1) <= limits)
        joined = lanes.joined(least[lanes.index], brings[lanes.index])
        which, at = np.nonzero(fits)
        offer(joined[fits], which, at, quick[lanes.index[which], at[:, None]].T)

        which, at = np.nonzero(possible & (bound < best * (1 - EQUAL)))
        # What may be best by far comes first: less is then left to be looked at.
        order = np.argsort(bound[which, at] - best[at], kind="stable")
        which, at = which[order], at[order]
        for start in range(0, len(which), _CHUNK):
            d, c = which[start : start + _CHUNK], at[start : start + _CHUNK]
            open_ = bound[d, c] < best[c] * (1 - EQUAL)
            d, c = d[open_], c[open_]
            index = lanes.index[d]  # [M, k]
            way_seconds = seconds[index, :, c[:, None]]  # [M, k, R]
            way_entering = entering[index, :, c[:, None]]
            fewest_here = way_entering.min(axis=2)
            left = limits[c][:, None] - fewest_here.sum(axis=1, keepdims=True) + fewest_here
            # The slack of rounding is what a sum in another order may differ by.
            left = left + EQUAL * np.abs(limits[c])[:, None]
            way_seconds = np.where(way_entering <= left[:, :, None], way_seconds, np.inf)
            bound_here = lanes.joined(way_seconds.min(axis=2), fewest_here, d)
            hard = bound_here < best[c] * (1 - EQUAL)
            if not hard.any():
                continue
            d, c = d[hard], c[hard]
            found, taken = combined(
                way_seconds[hard], way_entering[hard], lanes.main[d], limits[c], best[c]
            )
            fit = np.isfinite(found)
            offer(found[fit], d[fit], c[fit], taken[:, fit])
        shape = (1, size, size)
        all_brought = entering[lanes.index[division].T, rows, np.arange(cells)].sum(axis=0)

        def run(row: int, source: int, count: int) -> Run:
            cell = source * size + count
            return lanes.run(int(division[cell]), rows[:, cell], source, count, self.costs.counts)

        return Table(best.reshape(shape), all_brought.reshape(shape), run)

    def _open(self, lanes: Lanes, target: int) -> Table:
        """Something else leads to the target, too: every undominated way."""
        found: list[tuple[int, Kept, list[Indices]]] = []
        incumbent: Kept | None = None
        for number in range(len(lanes.divisions)):
            tables = [lanes.tables[index] for index in lanes.index[number]]
            main = lanes.main[number]
            if incumbent is not None and self._beaten(tables, main, target, incumbent):
                continue
            kept = Kept(tables[0].seconds, tables[0].entering, None)
            picks: list[Indices] = [
                np.broadcast_to(np.arange(len(kept.seconds))[:, None, None], kept.seconds.shape)
            ]
            for table, apart in zip(tables[1:], ~main[1:], strict=True):
                ways = len(table.seconds)
                before = kept.seconds[:, None], kept.entering[:, None]
                if apart:
                    joined = beside(*before, table.seconds, table.entering)
                else:
                    joined = before[0] + table.seconds
                shape = (-1, *kept.seconds.shape[1:])
                sums = (before[1] + table.entering).reshape(shape)
                kept = frontier(*self._possible(target, joined.reshape(shape), sums))
                picks = [np.take_along_axis(pick, rows_of(kept) // ways, 0) for pick in picks]
                picks.append(rows_of(kept) % ways)
            found.append((number, kept, picks))
            incumbent = kept if incumbent is None else better(incumbent, kept)
        final = frontier(
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
        self, tables: list[Table], main: NDArray[np.bool_], target: int, incumbent: Kept
    ) -> bool:
        """Whether no way of a division can be better than the incumbent's anywhere."""
        quickest = np.stack([table.seconds.min(axis=0) for table in tables])
        fewest = np.stack([table.entering.min(axis=0) for table in tables])
        entering = fewest.sum(axis=0)
        seconds = together(quickest, fewest, main[:, None, None], axis=0)
        dominated = (incumbent.seconds <= seconds * (1 + EQUAL)) & (incumbent.entering <= entering)
        beaten = dominated.any(axis=0) | ~np.isfinite(seconds)
        return bool((beaten | ~self.costs.allowed(target, entering)).all())

    def _divisions(self, block: Block, cap: int) -> Iterator[Division]:
        branches = range(len(block.branches))
        yield Division(tuple(branches), (), (cap,))
        if not self.costs.can_move:
            return
        movable = [b for b in branches if isinstance(block.branches[b], Chain)]
        counts = [int(count) for count in self.costs.counts]
        looked_at = 1
        for size in range(1, len(branches)):
            if size > len(movable):
                break
            if (cap, size) not in self._shared:
                self._shared[cap, size] = list(allotments_of(counts, counts[cap], size + 1))
            allotments = self._shared[cap, size]
            looked_at += math.comb(len(movable), size) * len(allotments)
            if not allotments:
                break
            if looked_at > _MAX_DIVISIONS:
                self.notes.append(
                    f"a block of {len(branches)} branches: at most {size - 1} run beside the others"
                )
                break
            for apart in itertools.combinations(movable, size):
                main = tuple(b for b in branches if b not in apart)
                for allotment in allotments:
                    yield Division(main, apart, allotment)
