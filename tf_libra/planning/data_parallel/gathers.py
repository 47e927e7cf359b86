"""Gathers under the next forward pass: groups and threads by LIBRA's model, at most K groups.

Gathers are added one at a time, in forward order (`simulation.api`). A state says that the
first l weights are gathered, d seconds of the forward pass have been computed, and sigma seconds
have been lost: sigma = time - d. With R(l), the computation of the layers of l weights, the next
gather begins with s = R(l) - d ready, P = p + a, Q = q + a and rate = alpha1 - alpha2·r, and

  hidden, P·rate <= s:  sigma += P·(1 - rate), d += P·rate
  else:                 sigma += Q + f·(P·(1 - rate) - Q) with f = s / (P·rate), d = R(l)

The rest is computed alone, so the forward pass takes R(L) + sigma. The least loss of the rest
falls by at most `steepest` per second of s, 1 under LIBRA's Assumption 2, and rises by at most
`rising`, 0 under Assumption 3. So a state is dropped if another has no larger sigma - rising·d and
no larger sigma + steepest·d, and the plan is optimal. With Z chunks of w = R(L)/Z seconds, the
latter is compared in whole chunks, which loses at most w at each gather but the last
(docs/sharded_updates.md).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_libra.cost_model import CostModel
from tf_libra.planning.data_parallel.exact_search import (
    ByteLoss,
    ParetoFront,
    SearchStates,
    groups_before,
)
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import TensorGroup

_Array = NDArray[np.float64]
_Indices = NDArray[np.int64]

_TIE = 1e-12  # of the forward pass: a plan is better only by more
_COARSE = (10, 40)  # chunks of searches whose plans bound the next search


def plan_gathers(
    profile: BackwardProfile,
    cost: CostModel,
    threads: Sequence[int],
    max_groups: int,
    chunks: int | None,
) -> tuple[TensorGroup, ...]:
    """Returns gathers that delay the next forward pass least, in forward order.

    Args:
      profile: the tensors, with `forward_seconds`.
      cost: cost of all-gathers (`CostModel.one_phase`).
      threads: R.
      max_groups: K.
      chunks: Z; None: the optimum in continuous time.
    """
    coarse = [number for number in _COARSE if chunks is None or number < chunks]
    found = _Found(np.inf, (), ())
    for number in (*coarse, chunks):
        found = _Search(profile, cost, threads, max_groups, number, found).run()
    edges = [len(profile.tensors) - stop for stop in (0, *found.stops)]
    return tuple(
        TensorGroup(start, stop, r)
        for (stop, start), r in zip(itertools.pairwise(edges), found.threads, strict=True)
    )


@dataclass(frozen=True)
class _Found:
    """The best gathers so far.

    Attributes:
      lost: seconds that they lose, at most.
      stops: ends of gathers, in forward order.
      threads: threads of gathers.
    """

    lost: float
    stops: tuple[int, ...]
    threads: tuple[int, ...]


class _RestBound:
    """Lower bound of what the gathers of all but the first l weights lose."""

    def __init__(
        self, num_bytes: _Indices, hiding: float, cost: CostModel, threads: _Indices
    ) -> None:
        """Begin with the bytes of the first l weights, l = 0..L.

        Args:
          num_bytes: shape [L + 1].
          hiding: computation that gathers may overlap: all but that of the last weight's layers.
          cost: cost of all-gathers.
          threads: R.
        """
        self._left = num_bytes[-1] - num_bytes
        self._hiding = hiding
        self._loss = None if cost.num_workers == 1 else ByteLoss(cost, threads)
        gained = float((cost.startup_seconds * (1 - cost.compute_rate(threads))).min())
        self._startup = min(gained, cost.exclusive_constant_seconds)

    def __call__(self, gathered: int, computed: _Array) -> _Array:
        """Returns the least seconds lost from here on; shape of `computed`."""
        left = self._left[gathered]
        if self._loss is None or not left or self._startup < 0:
            return np.full(computed.shape, 0.0 if self._loss is None or not left else -np.inf)
        return self._loss(left, np.maximum(0.0, self._hiding - computed)) + self._startup


class _Search:
    """Search for one profile and cost model."""

    def __init__(
        self,
        profile: BackwardProfile,
        cost: CostModel,
        threads: Sequence[int],
        max_groups: int,
        chunks: int | None,
        found: _Found,
    ) -> None:
        self._cost = cost
        self._threads = np.array(threads)[:, None]
        self._max_groups = min(max_groups, len(profile.tensors))
        self._bytes = np.concatenate([[0], np.cumsum(profile.num_bytes[::-1])])
        self._ready = np.concatenate([[0.0], np.cumsum(profile.forward_seconds[::-1])])
        self._chunk = None if not chunks else float(self._ready[-1]) / chunks
        self._steepest, self._rising = self._slopes(profile.num_bytes)
        self._rest = _RestBound(self._bytes, float(self._ready[-2]), cost, self._threads[:, 0])
        self._found = found

    def _slopes(self, sizes: NDArray[np.int64]) -> tuple[float, float]:
        """Returns how much the least loss of the rest falls and rises with s, at most.

        Both are 1 and 0 under Assumptions 3 and 2. They are monotone in a gather's size.
        """
        some = sizes[sizes > 0]
        if not some.size or self._cost.num_workers == 1:
            return 1.0, 0.0
        busy, used, alone = self._costs(np.array([some.min(), some.sum()]))
        slopes = (busy - used - alone) / used
        return max(1.0, -float(slopes.min())), max(0.0, float(slopes.max()))

    def _costs(self, sizes: NDArray[np.int64]) -> tuple[_Array, _Array, _Array]:
        """Returns P, P·rate and Q of gathers, shape [J, n]."""
        busy = self._cost.overlapped_all_reduce(sizes, self._threads)
        used = busy * self._cost.mean_compute_rate(sizes, self._threads)
        return busy, used, self._cost.exclusive_all_reduce(sizes, self._threads)

    def run(self) -> _Found:
        """Returns the best gathers of all searches so far."""
        count = len(self._bytes) - 1
        levels = [SearchStates.root(0.0)]
        fronts = [ParetoFront() for _ in range(count)]
        for groups in range(1, self._max_groups + 1):
            stops = range(1, count) if groups < self._max_groups else ()
            self._expand(levels, count, None)  # the incumbent bounds what follows
            states = SearchStates.joined(self._expand(levels, stop, fronts[stop]) for stop in stops)
            if states is None:
                break
            levels.append(states)
        return self._found

    def _expand(
        self, levels: list[SearchStates], stop: int, front: ParetoFront | None
    ) -> SearchStates | None:
        """Add a gather that ends at `stop`; return the states, or enter the complete plans."""
        before = levels[-1]
        parents = np.arange(np.searchsorted(before.tensors, stop))
        if parents.size == 0:
            return None
        first, done = before.tensors[parents], before.computation[parents]
        ready = np.maximum(0.0, self._ready[first] - done)
        busy, used, alone = self._costs(self._bytes[stop] - self._bytes[first])
        share = np.divide(ready, used, out=np.ones_like(used), where=used > ready)
        lost = before.lost[parents] + share * (busy - used) + (1 - share) * alone
        if front is None:
            self._enter(levels, parents, lost)
            return None
        computed = np.where(used > ready, self._ready[first], done + used)
        j, at = np.nonzero(lost + self._rest(stop, computed) < self._limit)
        lost, computed = lost[j, at], computed[j, at]
        if lost.size == 0:
            return None
        time = lost + self._steepest * computed
        if self._chunk:
            time = np.floor(time / self._chunk)
        stay = front.enter(lost - self._rising * computed, time)
        if stay.size == 0:
            return None
        return SearchStates(
            np.full(stay.size, stop), computed[stay], lost[stay], parents[at[stay]], j[stay]
        )

    @property
    def _limit(self) -> float:
        return self._found.lost - _TIE * (abs(self._found.lost) + float(self._ready[-1]))

    def _enter(self, levels: list[SearchStates], parents: _Indices, lost: _Array) -> None:
        """Keep the plan with the least loss [J, states] that ends with one more gather."""
        j, column = divmod(int(lost.argmin()), lost.shape[1])
        if self._found.stops and not lost[j, column] < self._limit:
            return
        stops, chosen = groups_before(levels, int(parents[column]))
        threads = self._threads[[*chosen, j], 0].tolist()
        self._found = _Found(float(lost[j, column]), (*stops, len(self._bytes) - 1), tuple(threads))
