"""LIBRA's dynamic program: Eq. 23, by Algorithm 1, over chunks of backward computation."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_libra.planning.data_parallel.chunked_costs import ChunkedCosts
from tf_libra.specs.backward_profile import BackwardProfile

_TIE = 1e-12  # of the extras: candidates this close count as equal
_ROUNDING = 1e-9  # relative to the largest group's extra
_BLOCK = 2**18  # elements of a temporary array


def solve(
    profile: BackwardProfile, costs: ChunkedCosts, max_groups: int
) -> tuple[float, list[int], list[int]]:
    """Returns T(K, L, Z) of Eq. 23 with the groups' stops and threads.

    The result is Algorithm 1's, up to ties; they go to fewer groups, then to larger groups earlier,
    then to fewer threads. The differences, with S(i, l, z) = T(i, l, z) - z·w:

    - By `chunks`, a stage that ends at z < Z adds an amount to S that does not depend on its number
      of chunks. As S never increases with z, the stage best begins at the latest z' that still
      hides its all-reduce: one z' instead of all.
    - For given threads, the l' whose group l'+1..l is hidden by exactly d chunks form a range, and
      the added amount is linear in bytes: the best l' is a range minimum of S(i-1, l', z') - (extra
      per byte)·(bytes before l'), read off a sparse table for all l and z together.
    - The last group starts at Z, since only then all is produced. Of two groups that both start at
      Z the union is no slower; so of the groups before, only the last can have a residual.
    """
    levels = [_no_group(profile, costs)]
    hidden = _HiddenGroups(profile, costs)
    for _ in range(max_groups - 2):
        level = hidden.add_group(levels[-1])
        if np.array_equal(level, levels[-1]):
            break  # one group more gains nothing, nor will another
        levels.append(level)
    ending = _best_ending(profile, costs, levels[-1], may_split=max_groups > 1)
    stops, threads = [len(profile.tensors)], [ending.last_threads]
    if ending.last_start > 0:
        stops.append(ending.last_start)
        threads.append(ending.threads)
        tensors, z = ending.start, ending.z
        while tensors > 0:
            stops.append(tensors)
            levels = _levels_behind(levels, tensors, z)
            tensors, z, chosen = _step_back(profile, costs, levels[-1], tensors, z)
            threads.append(chosen)
    return float(profile.compute_after[0]) + ending.extra, stops[::-1], threads[::-1]


def _no_group(profile: BackwardProfile, costs: ChunkedCosts) -> NDArray[np.float64]:
    """Returns S(0, l, z) for l < L, z < Z: computation alone costs no extra."""
    level = np.full((len(profile.tensors), costs.chunks), np.inf)
    level[0] = 0.0
    return level


@dataclass(frozen=True)
class _Step:
    """Groups that d chunks hide and d - 1 do not, for one number of threads.

    Attributes:
      rows: the l that have such groups.
      low, high: their range of l' is covered by two runs of a power of two that may overlap; the
        rows of `_sparse_table` that hold the runs' minima, same shape as rows.
    """

    chunks: int
    rows: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]


class _HiddenGroups:
    """Step of the recursion: one more group, hidden behind computation."""

    def __init__(self, profile: BackwardProfile, costs: ChunkedCosts) -> None:
        self._bytes = profile.effective_before[:-1]
        self._costs = costs
        self._steps = [self._ranges(index) for index in range(len(costs.threads))]
        # A group of l tensors starts no sooner than its last is produced.
        early = np.arange(costs.chunks) < costs.first_chunk[:-1, None]
        self._early = np.where(early, np.inf, 0.0)

    def _ranges(self, index: int) -> list[_Step]:
        costs = self._costs
        # No l' with l: the group would be empty, or of 0 bytes and not launched.
        above = np.searchsorted(self._bytes, self._bytes, "left")
        steps = []
        for chunks in range(costs.chunks):
            most = costs.fitting_bytes[index, chunks]
            if most < 0:
                continue
            low = np.searchsorted(self._bytes, self._bytes - most, "left")
            rows = np.flatnonzero((low < above) & (costs.first_chunk[:-1] + chunks < costs.chunks))
            if rows.size:
                power = np.frexp(above[rows] - low[rows])[1] - 1
                first = power * self._bytes.size
                steps.append(
                    _Step(chunks, rows, first + low[rows], first + above[rows] - (1 << power))
                )
            above = np.minimum(above, low)
        return steps

    def add_group(self, level: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns S(i, l, z) for S(i - 1, l, z); both for l < L and z < Z, at most i groups."""
        costs = self._costs
        best = level.copy()
        for index, steps in enumerate(self._steps):
            per_byte = costs.byte_extra[index] * self._bytes[:, None]
            table = _sparse_table(level - per_byte)
            added = self._early + (per_byte + costs.startup_extra[index])
            for step in steps:
                columns = slice(costs.first_chunk[step.rows[0]], costs.chunks - step.chunks)
                runs, ends = table[:, columns], best[:, columns.start + step.chunks :]
                candidates = np.minimum(runs[step.low], runs[step.high])
                candidates += added[step.rows, columns]
                ends[step.rows] = np.minimum(ends[step.rows], candidates)
        return best


def _sparse_table(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns minima of runs of 2**k rows that begin at row l, in row k·L + l of the result.

    Other rows are unchanged.
    """
    count = len(values)
    table = np.empty((count.bit_length(), *values.shape))
    table[0] = values
    for power in range(1, len(table)):
        half = 1 << (power - 1)
        runs = count - 2 * half + 1
        np.minimum(
            table[power - 1, :runs], table[power - 1, half : half + runs], out=table[power, :runs]
        )
    return table.reshape(-1, values.shape[1])


@dataclass(frozen=True)
class _Ending:
    """The last two groups.

    Attributes:
      extra: T(K, L, Z) - Z·w.
      last_start, last_threads: the last group begins with this tensor; 0: it is the only one.
      start, z, threads: the group before begins with this tensor, and its stage at this chunk edge.
    """

    extra: float
    last_start: int
    last_threads: int
    start: int = 0
    z: int = 0
    threads: int = 0


def _best_ending(
    profile: BackwardProfile, costs: ChunkedCosts, level: NDArray[np.float64], may_split: bool
) -> _Ending:
    """Find the last two groups after the groups of `level`."""
    left = profile.effective_before[-1] - profile.effective_before
    per_thread = costs.exclusive_all_reduce(left)
    alone = per_thread.min(axis=0)  # the last group, of the tensors from split on
    last_threads = [int(costs.threads[_first_least(column)]) for column in per_thread.T]
    best = _Ending(float(alone[0]), 0, last_threads[0])
    if not may_split:
        return best
    splits = np.flatnonzero((costs.first_chunk[:-1] < costs.chunks) & (left[:-1] < left[0]))
    # A lower bound for all splits excludes most of them.
    rounding = _ROUNDING * float(left[0] * np.abs(costs.byte_extra).max() + best.extra)
    hidden = _least_hidden(profile, costs, level) + alone[:-1]
    reached = min(best.extra, float(hidden[splits].min(initial=np.inf))) + rounding
    for split in splits[hidden[splits] <= reached].tolist():
        candidates, z = _hidden_before(profile, costs, level, split)
        best = _better(best, candidates + alone[split], z, costs, split, last_threads[split])
    bounds = _least_residual(profile, costs, level) + alone[:-1] - rounding
    for split in splits[bounds[splits] < best.extra].tolist():
        bounds[split] = _residual_bound(profile, costs, level, split).min() + alone[split]
    # Most promising first.
    for split in splits[np.argsort(bounds[splits], kind="stable")].tolist():
        if bounds[split] >= best.extra:
            break
        candidates, z = _residual_before(profile, costs, level, split, best.extra - alone[split])
        best = _better(best, candidates + alone[split], z, costs, split, last_threads[split])
    return best


def _least_hidden(
    profile: BackwardProfile, costs: ChunkedCosts, level: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns the least of `_hidden_before` for all splits, up to rounding; shape [L]."""
    before = profile.effective_before[:-1]
    least = np.full(len(before), np.inf)
    for index in range(len(costs.threads)):
        above = np.searchsorted(before, before, "left")
        per_byte = costs.byte_extra[index] * before
        for chunks in range(costs.chunks + 1):
            most = costs.fitting_bytes[index, chunks]
            if most < 0:
                continue
            # The groups that exactly this many chunks hide begin in a range of tensors.
            low = np.searchsorted(before, before - most, "left")
            z = costs.chunks - max(chunks, 1)
            rows = np.flatnonzero((low < above) & (costs.first_chunk[:-1] <= z))
            if rows.size:
                column = np.append(level[:, z] - per_byte, np.inf)
                ranges = np.stack([low[rows], above[rows]], axis=1).ravel()
                minima = np.minimum.reduceat(column, ranges)[::2] + per_byte[rows]
                least[rows] = np.minimum(least[rows], minima + costs.startup_extra[index])
            above = np.minimum(above, low)
    return least


def _least_residual(
    profile: BackwardProfile, costs: ChunkedCosts, level: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns a lower bound of `_residual_bound` for all splits, up to rounding; shape [L].

    The cost of an all-reduce with a residual lies between hidden and exclusive.
    """
    before = profile.effective_before[:-1]
    # No l' with the split: the group before it would be empty, or of 0 bytes and not launched.
    last = np.searchsorted(before, before, "left") - 1
    least = np.full(len(before), np.inf)
    for index in range(len(costs.threads)):
        for startup, per_byte in costs.hidden_and_alone(index):
            minima = np.minimum.accumulate(level[:, -1] - per_byte * before)
            found = np.where(last >= 0, minima[last], np.inf) + per_byte * before + startup
            least = np.minimum(least, found)
    return least


def _better(
    best: _Ending,
    candidates: NDArray[np.float64],
    z: NDArray[np.int64],
    costs: ChunkedCosts,
    split: int,
    last_threads: int,
) -> _Ending:
    """Returns the best of `best` and the candidates [J, n] for the last group but one."""
    start, j = np.unravel_index(_first_least(candidates.T), candidates.T.shape)
    extra = float(candidates[j, start])
    if extra >= best.extra - _TIE * abs(best.extra):
        return best
    return _Ending(extra, split, last_threads, int(start), int(z[j, start]), int(costs.threads[j]))


def _groups_before(profile: BackwardProfile, split: int) -> NDArray[np.int64]:
    """Returns bytes of the groups l'..split-1 for all l' that leave at least 1 byte, shape [n]."""
    sizes = profile.effective_before[split] - profile.effective_before[:split]
    return sizes[sizes > 0]


def _hidden_before(
    profile: BackwardProfile, costs: ChunkedCosts, level: NDArray[np.float64], split: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns extras of hidden groups that end before tensor `split`, and their z'; [J, n]."""
    sizes = _groups_before(profile, split)
    z = costs.chunks - np.maximum(costs.hidden_chunks(sizes), 1)
    extras = level[np.arange(sizes.size), np.maximum(z, 0)] + costs.hidden_extra(sizes)
    return np.where(z >= costs.first_chunk[split], extras, np.inf), z


def _residual_bound(
    profile: BackwardProfile, costs: ChunkedCosts, level: NDArray[np.float64], split: int
) -> NDArray[np.float64]:
    """Returns the least cost of a group before tensor `split` that Z does not hide; [J, n]."""
    sizes = _groups_before(profile, split)
    base, per_chunk = costs.residual_extra(sizes)
    most = np.minimum(costs.hidden_chunks(sizes) - 1, costs.chunks - costs.first_chunk[split])
    extras = base + np.minimum(per_chunk, per_chunk * most) + level[: sizes.size, -1]
    return np.where(most > 0, extras, np.inf)


def _residual_before(
    profile: BackwardProfile,
    costs: ChunkedCosts,
    level: NDArray[np.float64],
    split: int,
    limit: float,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns extras of groups with a residual that end before tensor `split`, and z'; [J, n].

    Groups that cannot cost less than the limit have infinite extras.
    """
    sizes = _groups_before(profile, split)
    base, per_chunk = costs.residual_extra(sizes)
    hidden = costs.hidden_chunks(sizes)
    extras = np.full(base.shape, np.inf)
    best_z = np.zeros(base.shape, np.int64)
    z = np.arange(costs.first_chunk[split], costs.chunks)
    spans = costs.chunks - z
    promising = np.argwhere(_residual_bound(profile, costs, level, split) < limit)
    for block in np.array_split(promising, 1 + promising.shape[0] * z.size // _BLOCK):
        j, start = block.T
        each = level[start[:, None], z] + base[j, start, None] + per_chunk[j, start, None] * spans
        each[spans >= hidden[j, start, None]] = np.inf
        least = np.argmin(each, axis=1)
        extras[j, start] = each[np.arange(len(block)), least]
        best_z[j, start] = z[least]
    return extras, best_z


def _levels_behind(
    levels: list[NDArray[np.float64]], tensors: int, z: int
) -> list[NDArray[np.float64]]:
    """Returns the levels below the first one with the last level's S(i, split, z)."""
    extra = levels[-1][tensors, z]
    return levels[: next(i for i, level in enumerate(levels) if level[tensors, z] == extra)]


def _step_back(
    profile: BackwardProfile,
    costs: ChunkedCosts,
    level: NDArray[np.float64],
    tensors: int,
    z: int,
) -> tuple[int, int, int]:
    """Returns l', z' and the threads of the group that leads from `level` to (split, z)."""
    sizes = _groups_before(profile, tensors)
    began = z - costs.hidden_chunks(sizes)
    extras = level[np.arange(sizes.size), np.maximum(began, 0)] + costs.hidden_extra(sizes)
    extras = np.where(began >= costs.first_chunk[tensors], extras, np.inf)
    start, j = np.unravel_index(_first_least(extras.T), extras.T.shape)
    return int(start), int(began[j, start]), int(costs.threads[j])


def _first_least(values: NDArray[np.float64]) -> int:
    """Returns the flat index of the first value that is the least, up to rounding."""
    least = values.min()
    return int(np.argmax(values.ravel() <= least + _TIE * abs(least)))
