"""Divisions of a block's branches into lanes, and their tables."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tf_libra.model_parallel.planning.burst.costs import Array
from tf_libra.model_parallel.planning.burst.edge_batches import Indices
from tf_libra.model_parallel.planning.burst.pareto_paths import Table, together
from tf_libra.model_parallel.planning.burst.strategy import BlockRun


@dataclass(frozen=True)
class BranchPartition:
    """Branches that run in parallel, and the positions of the lanes' allotments."""

    main: tuple[int, ...]
    parallel: tuple[int, ...]
    allotments: tuple[int, ...]


class BranchLanes:
    """Divisions of a block into lanes, and the tables of its branches in them.

    Attributes:
      divisions: the D divisions.
      wanted: the P distinct (branch, parallel, cap) of all divisions.
      tables: tables of `wanted`, in the same order.
      branches: number k of branches.
      index: table of each branch in a division, main branches first, shape [D, k].
      main: True for branches of the main lane, shape [D, k].
    """

    def __init__(self, divisions: Iterable[BranchPartition]) -> None:
        self.divisions = list(divisions)
        self.tables: list[Table] = []
        cells: dict[tuple[int, bool, int], int] = {}
        index, main = [], []
        for division in self.divisions:
            keys = [(branch, False, division.allotments[0]) for branch in division.main]
            keys += [
                (branch, True, cap)
                for branch, cap in zip(division.parallel, division.allotments[1:], strict=True)
            ]
            index.append([cells.setdefault(key, len(cells)) for key in keys])
            main.append([not parallel for _, parallel, _ in keys])
        self.wanted = tuple(cells)
        self.index, self.main = np.array(index), np.array(main)
        self.branches = self.index.shape[1]

    @property
    def num_ways(self) -> int:
        """Number of paths of all divisions."""
        sizes = [len(table.seconds) for table in self.tables]
        return sum(math.prod(sizes[index] for index in division) for division in self.index)

    def stacked(self) -> tuple[Array, Array]:
        """Return seconds and entering transitions of all tables, padded, [P, R, B * G * G]."""
        ways = max(len(table.seconds) for table in self.tables)
        shape = (len(self.tables), ways, self.tables[0].seconds[0].size)
        seconds, entering = np.full(shape, np.inf), np.full(shape, np.inf)
        for position, table in enumerate(self.tables):
            rows = len(table.seconds)
            seconds[position, :rows] = table.seconds.reshape(rows, -1)
            entering[position, :rows] = table.entering.reshape(rows, -1)
        entering[np.isinf(seconds)] = np.inf
        return seconds, entering

    def joined(self, seconds: Array, entering: Array, division: Indices | None = None) -> Array:
        """Return a block's seconds from its branches', [D, k, C] for all divisions or [M, k]."""
        main = self.main if division is None else self.main[division]
        if seconds.ndim == 3:
            main = main[:, :, None]
        return together(seconds, entering, main, axis=1)

    def run(
        self, number: int, rows: Indices, entry: tuple[int, int, int], counts: Array
    ) -> BlockRun:
        """Return the run of a division at a cell, from the row of each branch."""
        division = self.divisions[number]
        runs = [
            self.tables[index].run(int(row), *entry)
            for index, row in zip(self.index[number], rows, strict=True)
        ]
        return BlockRun(
            tuple(runs[: len(division.main)]),
            tuple(runs[len(division.main) :]),
            tuple(int(counts[cap]) for cap in division.allotments),
        )


def allotments_of(counts: list[int], devices: int, lanes: int) -> Iterator[tuple[int, ...]]:
    """Yield maximal positions of device counts for each lane.

    More devices only add paths to a branch, so smaller allotments are not needed.
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
