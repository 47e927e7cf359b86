"""Blocks of parallel branches as steps of a shortest path (DeepPool 4.2, multi-chain reduction).

A block lies between a layer on g devices and one on h. Its branches run one after the other on the
devices around the block, or some run in parallel. A parallel branch has its own allotment of
devices and transfers its examples to the allotment and back. Allotments have allowed device counts,
and their sum is at most the block's device count.

All transitions into the joining layer run on its devices, one after the other, after the longest
branch lane. They count in the layer's amplification. A branch therefore has no single cost: a
longer path through it may have a shorter final transition. A `Table` holds, per (g, h), all paths
that are Pareto-optimal in both costs.

Links of one shape are solved in batches (`edge_batches`).
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tf_libra.model_parallel.planning.burst.branch_partitions import (
    BranchLanes,
    BranchPartition,
    allotments_of,
)
from tf_libra.model_parallel.planning.burst.costs import Array, Costs
from tf_libra.model_parallel.planning.burst.edge_batches import (
    Blocks,
    Bundle,
    Chains,
    Edges,
    Indices,
)
from tf_libra.model_parallel.planning.burst.pareto_paths import (
    EQUAL,
    ParetoSet,
    Table,
    better,
    combined,
    frontier,
    in_parallel,
    rows_of,
    together,
)
from tf_libra.model_parallel.planning.burst.strategy import ChainRun, EdgeRun, Run

# Largest number of divisions of a block's branches into lanes.
_MAX_DIVISIONS = 4096
# Number of rows from which pruning a table is faster than enumerating it.
MANY = 16
# Largest number of row choices that are enumerated without pruning.
_FEW = 128
# Number of cases per batch.
_CHUNK = 128


@dataclass(frozen=True)
class Step:
    """Fastest allowed paths along links with their targets, [B, G, G], and the paths' rows."""

    seconds: Array
    rows: Indices | None


@dataclass(frozen=True)
class _Surroundings:
    """Position of a link.

    Attributes:
      cap: position of the largest device count of its layers.
      left, right: True if its begin or end connects to other devices.
    """

    cap: int
    left: bool = False
    right: bool = False


@dataclass
class Branches:
    """Tables and steps of all bundles under one limit, each computed once and cached."""

    costs: Costs
    notes: list[str] = field(default_factory=list)
    _tables: dict[tuple[int, _Surroundings, bool], Table] = field(default_factory=dict)
    _steps: dict[tuple[int, _Surroundings], Step] = field(default_factory=dict)
    _shared: dict[tuple[int, int], list[tuple[int, ...]]] = field(default_factory=dict)

    def step(self, links: Bundle, cap: int) -> Step:
        """Return the steps along links between layers of one lane; see `_Place.cap`."""
        return self._step(links, _Surroundings(cap))

    def step_run(self, links: Bundle, cap: int, link: int, source: int, count: int) -> Run:
        """Return the run of one step, from position `source` to position `count`."""
        return self._step_run(links, _Surroundings(cap), link, source, count)

    def _step(self, links: Bundle, surroundings: _Surroundings) -> Step:
        if isinstance(links, Edges):
            if links.real:
                return Step(
                    self.costs.step(links.index, surroundings.left or surroundings.right), None
                )
            own = self.costs.start(links.targets)
            return Step(np.repeat(own[:, None], own.shape[1], axis=1), None)
        key = (id(links), surroundings)
        if key not in self._steps:
            table = self._table(links, surroundings, closed=True)
            allowed = table.entering <= self.costs.budget(links.targets)
            seconds = np.where(allowed, table.seconds, np.inf)
            least = seconds.min(axis=0) + self.costs.own[links.targets, None]
            self._steps[key] = Step(least, seconds.argmin(axis=0))
        return self._steps[key]

    def _step_run(
        self, links: Bundle, surroundings: _Surroundings, link: int, source: int, count: int
    ) -> Run:
        if isinstance(links, Edges):
            return EdgeRun(int(links.index[link]))
        rows = self._step(links, surroundings).rows
        assert rows is not None
        table = self._table(links, surroundings, closed=True)
        return table.run(int(rows[link, source, count]), link, source, count)

    def _table(self, links: Bundle, surroundings: _Surroundings, closed: bool) -> Table:
        """Return the paths along links; `closed`: their targets have no other input."""
        key = (id(links), surroundings, closed)
        if key not in self._tables:
            if isinstance(links, Edges):
                self._tables[key] = self._edges(links, surroundings)
            elif isinstance(links, Chains):
                self._tables[key] = self._chain(links, surroundings, closed)
            else:
                self._tables[key] = self._block(links, surroundings, closed)
        return self._tables[key]

    def _edges(self, edges: Edges, surroundings: _Surroundings) -> Table:
        size = len(self.costs.counts)
        seconds = np.zeros((1, len(edges.index), size, size))
        if edges.real:
            seconds = self.costs.edge(edges.index, surroundings.left or surroundings.right)[None]
        runs = [EdgeRun(index) for index in edges.index.tolist()]
        return Table(seconds, seconds, lambda row, link, source, count: runs[link])

    def _chain(self, chains: Chains, surroundings: _Surroundings, closed: bool) -> Table:
        allowed = surroundings.cap + 1
        first, *middle, final = chains.links
        inside = _Surroundings(surroundings.cap)
        entry = _Surroundings(surroundings.cap, left=surroundings.left)
        best = self._step(first, entry).seconds[:, :, :allowed]
        taken: list[tuple[Array, Array]] = []
        for links in middle:
            step = self._step(links, inside).seconds[:, :allowed, :allowed]
            taken.append((best, step))
            best = (best[:, :, :, None] + step[:, None]).min(axis=2)
        last = self._table(final, _Surroundings(surroundings.cap, right=surroundings.right), closed)
        # Indexed by the last layer's device count and the path from there, [., ., B, G, G].
        ways, shape = len(last.seconds), last.seconds.shape[1:]
        seconds, entering = (
            x[:, :, :allowed].transpose(2, 0, 1, 3)[:, :, :, None]
            for x in (last.seconds, last.entering)
        )
        seconds = best.transpose(2, 0, 1)[:, None, :, :, None] + seconds
        entering = np.broadcast_to(entering, seconds.shape)
        pareto = ParetoSet(seconds.reshape(-1, *shape), entering.reshape(-1, *shape), None)
        if len(pareto.seconds) > MANY:
            pareto = frontier(*self._possible(chains.targets, pareto.seconds, pareto.entering))

        def run(row: int, link: int, source: int, count: int) -> Run:
            position, way = divmod(pareto.row(row, link, source, count), ways)
            counts = [position]
            for before, step in reversed(taken):
                counts.append(int((before[link, source] + step[link, :, counts[-1]]).argmin()))
            counts.reverse()
            runs = [self._step_run(first, entry, link, source, counts[0])]
            for links, pair in zip(middle, itertools.pairwise(counts), strict=True):
                runs.append(self._step_run(links, inside, link, *pair))
            runs.append(last.run(way, link, position, count))
            return ChainRun(tuple(chains.layers[:, link].tolist()), tuple(counts), tuple(runs))

        return Table(pareto.seconds, pareto.entering, run)

    def _possible(self, targets: Indices, seconds: Array, entering: Array) -> tuple[Array, Array]:
        """Drop paths whose transition alone exceeds the targets' limits."""
        possible = entering <= self.costs.budget(targets)
        return np.where(possible, seconds, np.inf), np.where(possible, entering, np.inf)

    def _block(self, blocks: Blocks, surroundings: _Surroundings, closed: bool) -> Table:
        lanes = BranchLanes(self._divisions(blocks, surroundings.cap))
        for branch, apart, cap in lanes.wanted:
            inner = _Surroundings(cap, surroundings.left or apart, surroundings.right or apart)
            lanes.tables.append(self._table(blocks.branches[branch], inner, closed=False))
        if closed:
            if lanes.num_ways <= _FEW:
                return self._together(lanes, self.costs.budget(blocks.targets))
            return self._closed(lanes, self.costs.budget(blocks.targets))
        return self._open(lanes, blocks.targets)

    def _together(self, lanes: BranchLanes, budget: Array) -> Table:
        """Enumerate every division and choice of a row per branch; for few paths."""
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
                    joined = in_parallel(*before, table.seconds, table.entering)
                seconds = joined.reshape(shape)
                entering = (entering[:, None] + table.entering).reshape(shape)
            every_seconds.append(seconds)
            every_entering.append(entering)
        seconds, entering = np.concatenate(every_seconds), np.concatenate(every_entering)
        seconds = np.where(entering <= budget, seconds, np.inf)
        rows = seconds.argmin(axis=0)
        positions = np.arange(rows.size)

        def run(row: int, link: int, source: int, count: int) -> Run:
            way, number = int(rows[link, source, count]), 0
            while way >= len(every_seconds[number]):
                way -= len(every_seconds[number])
                number += 1
            sizes = [len(lanes.tables[index].seconds) for index in lanes.index[number]]
            chosen = np.array(np.unravel_index(way, sizes))
            return lanes.run(number, chosen, (link, source, count), self.costs.counts)

        brought = entering.reshape(len(entering), -1)[rows.ravel(), positions]
        return Table(seconds.min(axis=0)[None], brought.reshape(1, *rows.shape), run)

    def _closed(self, lanes: BranchLanes, budget: Array) -> Table:
        """Return the fastest path per (g, h) within the budget; the target has no other input.

        Each division starts with the lower bound of its branches. If the fastest rows together
        reach the bound within the budget, they are the result. Otherwise each branch gets the
        budget that the others leave, and branches with slack take their shortest transitions. Only
        if the bound is still missed, rows are combined.
        """
        shape = lanes.tables[0].seconds.shape[1:]
        cells = math.prod(shape)
        seconds, entering = lanes.stacked()
        limits = np.broadcast_to(budget, shape).reshape(cells)
        best = np.full(cells, np.inf)
        division = np.zeros(cells, np.intp)
        rows = np.zeros((lanes.branches, cells), np.intp)

        def offer(found: Array, which: Indices, at: Indices, taken: Indices) -> None:
            """Store results that beat the incumbent: seconds, divisions, cells, rows [k, M]."""
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
        # The most promising divisions first: their incumbents prune the others.
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
            # The rounding slack: sums in another order may differ by it.
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
        all_brought = entering[lanes.index[division].T, rows, np.arange(cells)].sum(axis=0)

        def run(row: int, link: int, source: int, count: int) -> Run:
            entry = link, source, count
            cell = int(np.ravel_multi_index(entry, shape))
            return lanes.run(int(division[cell]), rows[:, cell], entry, self.costs.counts)

        return Table(best.reshape(1, *shape), all_brought.reshape(1, *shape), run)

    def _open(self, lanes: BranchLanes, targets: Indices) -> Table:
        """Return every undominated path; the target has other inputs."""
        found: list[tuple[int, ParetoSet, list[Indices]]] = []
        incumbent: ParetoSet | None = None
        for number in range(len(lanes.divisions)):
            tables = [lanes.tables[index] for index in lanes.index[number]]
            main = lanes.main[number]
            if incumbent is not None and self._beaten(tables, main, targets, incumbent):
                continue
            pareto = ParetoSet(tables[0].seconds, tables[0].entering, None)
            picks: list[Indices] = [
                np.broadcast_to(
                    np.arange(len(pareto.seconds))[:, None, None, None], pareto.seconds.shape
                )
            ]
            for table, apart in zip(tables[1:], ~main[1:], strict=True):
                ways = len(table.seconds)
                before = pareto.seconds[:, None], pareto.entering[:, None]
                if apart:
                    joined = in_parallel(*before, table.seconds, table.entering)
                else:
                    joined = before[0] + table.seconds
                shape = (-1, *pareto.seconds.shape[1:])
                sums = (before[1] + table.entering).reshape(shape)
                pareto = frontier(*self._possible(targets, joined.reshape(shape), sums))
                picks = [np.take_along_axis(pick, rows_of(pareto) // ways, 0) for pick in picks]
                picks.append(rows_of(pareto) % ways)
            found.append((number, pareto, picks))
            incumbent = pareto if incumbent is None else better(incumbent, pareto)
        final = frontier(
            np.concatenate([pareto.seconds for _, pareto, _ in found]),
            np.concatenate([pareto.entering for _, pareto, _ in found]),
        )
        ends = list(itertools.accumulate(len(pareto.seconds) for _, pareto, _ in found))

        def run(row: int, link: int, source: int, count: int) -> Run:
            entry = link, source, count
            offered = final.row(row, *entry)
            position = next(i for i, end in enumerate(ends) if offered < end)
            number, pareto, picks = found[position]
            way = offered - (ends[position] - len(pareto.seconds))
            taken = np.array([pick[way, *entry] for pick in picks])
            return lanes.run(number, taken, entry, self.costs.counts)

        return Table(final.seconds, final.entering, run)

    def _beaten(
        self, tables: list[Table], main: NDArray[np.bool_], targets: Indices, incumbent: ParetoSet
    ) -> bool:
        """Return True if no path of a division can beat the incumbent anywhere."""
        quickest = np.stack([table.seconds.min(axis=0) for table in tables])
        fewest = np.stack([table.entering.min(axis=0) for table in tables])
        entering = fewest.sum(axis=0)
        seconds = together(quickest, fewest, main[:, None, None, None], axis=0)
        dominated = (incumbent.seconds <= seconds * (1 + EQUAL)) & (incumbent.entering <= entering)
        beaten = dominated.any(axis=0) | ~np.isfinite(seconds)
        return bool((beaten | ~(entering <= self.costs.budget(targets))).all())

    def _divisions(self, blocks: Blocks, cap: int) -> Iterator[BranchPartition]:
        branches = range(len(blocks.branches))
        yield BranchPartition(tuple(branches), (), (cap,))
        if not self.costs.can_move:
            return
        movable = [b for b in branches if isinstance(blocks.branches[b], Chains)]
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
                    f"a block of {len(branches)} branches: at most {size - 1} run in parallel"
                )
                break
            for apart in itertools.combinations(movable, size):
                main = tuple(b for b in branches if b not in apart)
                for allotment in allotments:
                    yield BranchPartition(main, apart, allotment)
