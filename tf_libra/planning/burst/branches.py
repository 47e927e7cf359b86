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
from collections.abc import Callable, Iterator
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

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Table:
    """The undominated ways along a link, from g devices to h, by what comes in at its end.

    Attributes:
      seconds: rising with falling `entering`, shape [R, G, G]; infinite where there are fewer ways.
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
            rows = seconds.argmin(axis=0)
            least = np.take_along_axis(seconds, rows[None], 0)[0]
            self._steps[key] = Step(least + self.costs.own[target], rows)
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
        back: list[Indices] = []
        for link, layer in zip(chain.links[1:-1], chain.layers[1:], strict=True):
            step = self._step(link, layer, inside).seconds[:allowed, :allowed]
            total = best[:, :, None] + step
            back.append(total.argmin(axis=1))
            best = total.min(axis=1)
        exit_place = _Place(place.cap, right=place.right)
        last = self._table(chain.links[-1], target, exit_place, closed)
        ways, size = len(last.seconds), len(self.costs.counts)
        shape = (allowed, ways, size, size)
        seconds = (
            best.T[:, None, :, None] + last.seconds[:, :allowed].transpose(1, 0, 2)[:, :, None]
        )
        entering = np.broadcast_to(last.entering[:, :allowed].transpose(1, 0, 2)[:, :, None], shape)
        kept = _frontier(
            *self._possible(
                target, seconds.reshape(-1, size, size), entering.reshape(-1, size, size)
            )
        )

        def run(row: int, source: int, count: int) -> Run:
            position, way = divmod(int(kept.rows[row, source, count]), ways)
            counts = [position]
            for column in reversed(back):
                counts.append(int(column[source, counts[-1]]))
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
        divisions = self._divisions(block, place.cap)
        size = len(self.costs.counts)
        tables: dict[tuple[int, bool, int], Table] = {}

        def lane(branch: int, beside: bool, cap: int) -> Table:
            key = (branch, beside, cap)
            if key not in tables:
                inner = _Place(cap, place.left or beside, place.right or beside)
                tables[key] = self._table(block.branches[branch], target, inner, closed=False)
            return tables[key]

        # Per division that is not beaten: its ways, and the row of each branch in them.
        found: list[tuple[_Division, _Kept, list[Indices]]] = []
        incumbent: _Kept | None = None
        for division in divisions:
            lanes = [lane(b, False, division.allotments[0]) for b in division.main]
            lanes += [
                lane(b, True, cap)
                for b, cap in zip(division.beside, division.allotments[1:], strict=True)
            ]
            if incumbent is not None and self._beaten(lanes, division, target, incumbent):
                continue
            kept, picks = self._combined(lanes, len(division.main), target)
            found.append((division, kept, picks))
            incumbent = kept if incumbent is None else _better(incumbent, kept)
        seconds = np.concatenate([kept.seconds for _, kept, _ in found])
        entering = np.concatenate([kept.entering for _, kept, _ in found])
        if closed:
            # Nothing else comes in: only the quickest way counts.
            rows = seconds.argmin(axis=0)[None]
            final = _Kept(
                np.take_along_axis(seconds, rows, 0), np.take_along_axis(entering, rows, 0), rows
            )
        else:
            final = _frontier(seconds, entering)
        ends = list(itertools.accumulate(len(kept.seconds) for _, kept, _ in found))
        assert final.seconds.shape[1:] == (size, size)

        def run(row: int, source: int, count: int) -> Run:
            place_of = int(final.rows[row, source, count])
            number = next(i for i, end in enumerate(ends) if place_of < end)
            division, kept, picks = found[number]
            way = place_of - (ends[number] - len(kept.seconds))
            caps = [division.allotments[0]] * len(division.main) + list(division.allotments[1:])
            runs = [
                lane(branch, position >= len(division.main), caps[position]).run(
                    int(picks[position][way, source, count]), source, count
                )
                for position, branch in enumerate((*division.main, *division.beside))
            ]
            return BlockRun(
                tuple(runs[: len(division.main)]),  # type: ignore[arg-type]
                tuple(runs[len(division.main) :]),  # type: ignore[arg-type]
                tuple(int(self.costs.counts[cap]) for cap in division.allotments),
            )

        return Table(final.seconds, final.entering, run)

    def _beaten(
        self, lanes: list[Table], division: _Division, target: int, incumbent: "_Kept"
    ) -> bool:
        """Whether no way of a division can be better than the incumbent's anywhere."""
        seconds = _least(lanes, len(division.main))
        entering = sum((table.entering.min(axis=0) for table in lanes), np.zeros(seconds.shape))
        dominated = (incumbent.seconds <= seconds * (1 + _EQUAL)) & (incumbent.entering <= entering)
        beaten = dominated.any(axis=0) | ~np.isfinite(seconds)
        return bool((beaten | ~self.costs.allowed(target, entering)).all())

    def _combined(
        self, lanes: list[Table], num_main: int, target: int
    ) -> tuple["_Kept", list[Indices]]:
        """Returns the undominated ways of a division, and which row each branch takes in them."""
        seconds, entering = lanes[0].seconds, lanes[0].entering
        picks = [np.broadcast_to(np.arange(len(seconds))[:, None, None], seconds.shape)]
        kept = _Kept(seconds, entering, picks[0])
        for position, table in enumerate(lanes[1:], start=1):
            ways = len(table.seconds)
            join = np.add if position < num_main else np.maximum
            shape = (-1, *seconds.shape[1:])
            seconds = join(kept.seconds[:, None], table.seconds[None]).reshape(shape)
            entering = (kept.entering[:, None] + table.entering[None]).reshape(shape)
            kept = _frontier(*self._possible(target, seconds, entering))
            picks = [np.take_along_axis(pick, kept.rows // ways, 0) for pick in picks]
            picks.append(kept.rows % ways)
        return kept, picks

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
            allotments = list(_allotments(counts, counts[cap], size + 1))
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


@dataclass(frozen=True)
class _Kept:
    """Undominated ways, as in `Table`, and which row each was, shape [R, G, G]."""

    seconds: Array
    entering: Array
    rows: Indices


def _frontier(seconds: Array, entering: Array) -> _Kept:
    """Keeps per (g, h) the ways that none beats in both; what enters rises with the row."""
    order = np.lexsort((seconds, entering), axis=0)
    sorted_seconds = np.take_along_axis(seconds, order, 0)
    least = np.minimum.accumulate(sorted_seconds, axis=0)
    keep = np.isfinite(sorted_seconds)
    keep[1:] &= sorted_seconds[1:] < least[:-1] * (1 - _EQUAL)
    size = max(1, int(keep.sum(axis=0).max()))
    place = np.argsort(~keep, axis=0, kind="stable")[:size]
    rows = np.take_along_axis(order, place, 0)
    kept = np.take_along_axis(keep, place, 0)
    return _Kept(
        np.where(kept, np.take_along_axis(seconds, rows, 0), np.inf),
        np.where(kept, np.take_along_axis(entering, rows, 0), np.inf),
        rows,
    )


def _better(one: _Kept, other: _Kept) -> _Kept:
    return _frontier(
        np.concatenate([one.seconds, other.seconds]), np.concatenate([one.entering, other.entering])
    )


def _least(lanes: list[Table], num_main: int) -> Array:
    """A block's seconds if every branch took its quickest way."""
    quickest = [table.seconds.min(axis=0) for table in lanes]
    seconds = sum(quickest[1:num_main], quickest[0])
    for other in quickest[num_main:]:
        seconds = np.maximum(seconds, other)
    return seconds


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
