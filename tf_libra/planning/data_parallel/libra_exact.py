"""Exact optimum of LIBRA's problem in continuous time: at most K groups, threads from R.

Groups are added one at a time. A state says that the first l tensors are all-reduced in i groups
and the last of these has ended: s seconds of backward computation are left, and sigma seconds have
been lost so far, sigma = time + s - (all computation). What a group adds follows from Eqs. 8-15;
with P = p + a, Q = q + a and rate = alpha1 - alpha2·r, once it may start with s left,

  hidden, P·rate <= s:  sigma += P·(1 - rate), s -= P·rate
  else:                 sigma += Q + f·(P·(1 - rate) - Q) with f = s / (P·rate), s = 0

and waiting for a group's last tensor only lowers s. A wait for other ranks (`CostModel.waiting`)
adds to Q and to the computation that is used, P·rate, but not to the loss P·(1 - rate). Once s = 0
the rest is best all-reduced as one group, with the threads of least q.

States are dropped in two ways, neither of which loses the optimum:

- Dominance. The time v(s) that the rest takes is continuous and piecewise linear in s, with slope
  1 while it waits and (1 - Q/P) / rate, without waiting for ranks, while an all-reduce that will
  have a residual is running.
  Let m and M be the least and the largest of these slopes and of 1 over R and all group sizes.
  Lemma 3 is m >= 0 and Lemma 4 is M <= 1; they hold under Assumptions 2 and 3, but any m and M
  serve: a state is dropped if another has no larger time + m·s and no larger time + M·s.
- Bound. A state goes if what it has lost and a lower bound on what the rest must lose reach what a
  known plan loses; the first such plans are those of the chunked program and of a pass that follows
  a few states alone. There are two bounds: the cheapest way to send the bytes with the computation
  left, in groups of any number and size (`LossBound`); and the cheapest groups, of those that K
  leaves, with all computation that there can be (`_rest_bounds`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_libra.cost_model import CostModel
from tf_libra.planning.data_parallel.chunked_costs import ChunkedCosts
from tf_libra.planning.data_parallel.dynamic_program import solve
from tf_libra.planning.data_parallel.exact_search import (
    LossBound,
    ParetoFront,
    SearchStates,
    groups_before,
)
from tf_libra.planning.strategy import Draft, groups_from_stops
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

_Array = NDArray[np.float64]
_Indices = NDArray[np.int64]

_TIE = 1e-12  # of the total time: a plan is better only by more
_CHUNKS = 50  # of the dynamic program whose plan is the first incumbent
_BEAM = 1000  # states per level that the first pass follows: those with the least lower bounds


def plan_libra_exact(
    profile: BackwardProfile,
    cost: CostModel,
    threads: Sequence[int],
    max_groups: int,
    chunks: int,
) -> Draft:
    """Returns a plan that no sequential plan of at most K groups and threads from R beats.

    Args:
        profile: the gradients.
        cost: the cost model.
        threads: R.
        max_groups: K.
        chunks: Z of the dynamic program whose plans are the first incumbents.
    """
    return _Search(profile, cost, threads, max_groups, chunks).run()


@dataclass(frozen=True)
class _Added:
    """Additions of groups to their start state; every array has shape [J, n].

    Attributes:
        hidden: seconds lost by a hidden group; infinite if computation does not hide it.
        residual: seconds lost by a group with a residual; infinite if computation hides it.
        left: computation left after a hidden group.
    """

    hidden: _Array
    residual: _Array
    left: _Array


class _Search:
    """Search for one profile and cost model."""

    def __init__(
        self,
        profile: BackwardProfile,
        cost: CostModel,
        threads: Sequence[int],
        max_groups: int,
        chunks: int,
    ) -> None:
        self._profile = profile
        self._cost = cost
        self._chunks = chunks
        self._threads = np.array(threads)
        self._max_groups = min(max_groups, len(profile.tensors))
        self._rate = cost.compute_rate(self._threads)[:, None]
        self._startup = cost.startup_seconds
        self._byte = cost.overlapped_seconds(1, self._threads)[:, None]
        self._waiting = cost.waiting_seconds
        self._alone_startup = cost.exclusive_constant_seconds
        self._alone_byte = cost.exclusive_seconds(1, self._threads)[:, None]
        self._m, self._M = self._slopes()
        self._bound = LossBound(profile, cost, self._threads, self._max_groups)
        rest = profile.effective_before[-1] - profile.effective_before
        ending = cost.exclusive_all_reduce(rest, self._threads[:, None])
        self._ending = ending.min(axis=0)  # loss of the last group, with the tensors from l on
        self._ending_threads = self._threads[ending.argmin(axis=0)]
        self._rest = self._rest_bounds()
        # The incumbent plan.
        self._lost = math.inf
        self._stops: list[int] = []
        self._plan_threads: list[int] = []
        self._enter_chunked(min(chunks, _CHUNKS))
        self._tie = _TIE * (self._lost + float(profile.compute_after[0]))
        self._levels: list[SearchStates] = []

    def _slopes(self) -> tuple[float, float]:
        """Returns m and M; slopes are monotone in the group's size, so its extremes suffice."""
        some = self._profile.effective_bytes[self._profile.effective_bytes > 0]
        if not some.size or self._byte.max() == 0:
            return 1.0, 1.0
        sizes = np.array([some.min(), some.sum()])
        # Without waiting, which is a part of both.
        alone = self._cost.exclusive_startup_seconds + self._alone_byte * sizes
        busy = self._startup + self._byte * sizes
        slopes = (1 - alone / busy) * (busy / (self._waiting + busy * self._rate))
        return min(1.0, float(slopes.min())), max(1.0, float(slopes.max()))

    def _rest_bounds(self) -> _Array:
        """Returns the least loss from tensor l on with at most g groups, shape [K + 1, L + 1].

        The recursion over groups is the same, but every group starts when its last tensor is
        produced, with at least the computation left of a real schedule. If M <= 1, this loses no
        more.
        """
        count = len(self._profile.tensors)
        rest = np.tile(self._bound.late, (self._max_groups + 1, 1))
        if self._M > 1:
            return rest
        rest[1] = np.maximum(rest[1], self._ending)
        for first in range(count - 2, -1, -1):
            stops = np.arange(first + 1, count)
            added = self._added(
                self._profile.effective_before[stops] - self._profile.effective_before[first],
                self._profile.compute_after[stops],
            )
            least = np.minimum(
                self._ending[first], (added.residual + self._ending[stops]).min(initial=np.inf)
            )
            after = self._bound(
                stops, np.minimum(added.left, self._profile.compute_after[stops + 1])
            )
            hidden = added.hidden + np.maximum(rest[1:-1, None, stops], after)
            least = np.minimum(least, hidden.min(axis=(1, 2)))
            rest[2:, first] = np.maximum(rest[2:, first], least)
        return rest

    def _added(self, sizes: NDArray[np.int64], left: _Array) -> _Added:
        """Returns the additions of groups of these sizes, started with `left`; both [n]."""
        busy = self._startup + self._byte * sizes
        used = self._waiting + busy * self._rate
        alone = self._alone_startup + self._alone_byte * sizes
        # Groups of 0 bytes are not launched, nor does it help to wait for one.
        hidden = (used <= left) & (sizes > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(used > left, left / used, 0.0)
        lost = busy * (1 - self._rate)
        return _Added(
            hidden=np.where(hidden, lost, np.inf),
            residual=np.where((used > left) & (sizes > 0), alone + share * (lost - alone), np.inf),
            left=left - used,
        )

    def run(self) -> Draft:
        """Returns the best plan.

        The first pass, a beam search, often finds a good incumbent soon. If the beam dropped no
        state, its plan is optimal.
        """
        if not self._search(beam=True):
            self._enter_chunked(self._chunks)
            self._search(beam=False)
        return Draft(groups_from_stops(self._stops, self._plan_threads), self._notes())

    def _enter_chunked(self, chunks: int) -> None:
        """Use the chunked dynamic program's plan as an incumbent."""
        profile, cost = self._profile, self._cost
        costs = ChunkedCosts(profile, cost, self._threads.tolist(), chunks)
        _, stops, threads = solve(profile, costs, self._max_groups)
        groups = groups_from_stops(stops, threads)
        plan = Plan.for_profile(profile, groups, cost.num_workers, "")
        lost = simulate(profile, plan, cost).backward_seconds - float(profile.compute_after[0])
        if lost < self._lost:
            self._lost, self._stops, self._plan_threads = lost, stops, threads

    def _search(self, beam: bool) -> bool:
        """Search all levels, optionally as a beam; return True if no state was dropped."""
        after = self._profile.compute_after
        self._levels = [SearchStates.root(min(after[0], after[1]))]
        fronts = [ParetoFront() for _ in self._profile.tensors]
        complete = True
        for groups in range(1, self._max_groups):
            groups_left = self._max_groups - groups
            reach = self._reach(self._levels[-1])
            states = SearchStates.joined(
                self._expand(stop, np.flatnonzero(reach >= stop), fronts[stop], groups_left)
                for stop in range(1, len(fronts))
            )
            if states is None:
                break
            if beam and states.lost.size > _BEAM:
                complete = False
                least = states.lost + np.maximum(
                    self._bound(states.tensors, states.computation),
                    self._rest[groups_left, states.tensors],
                )
                states = states.chosen(np.sort(np.argpartition(least, _BEAM)[:_BEAM]))
            self._levels.append(states)
        return complete

    def _reach(self, states: SearchStates) -> _Indices:
        """Return, for each state, the last l at which its next group may end, by the bound.

        The group waits for its last tensor, which reduces the computation left to overlap.
        """
        low, high = states.tensors.copy(), np.full(len(states.lost), len(self._ending) - 2)
        while np.any(low < high):
            middle = (low + high + 1) // 2
            left = np.minimum(states.computation, self._profile.compute_after[middle])
            promising = states.lost + self._bound(states.tensors, left) < self._lost - self._tie
            low, high = np.where(promising, middle, low), np.where(promising, high, middle - 1)
        return low

    def _expand(
        self, stop: int, reaching: _Indices, front: ParetoFront, groups_left: int
    ) -> SearchStates | None:
        """Add a group that ends at `stop`; return the states and record the complete plans."""
        states = self._levels[-1]
        bytes_before = self._profile.effective_before
        # Groups of at least 1 byte: none of 0 bytes is launched, nor does it help to wait for one.
        fewest = np.searchsorted(bytes_before, bytes_before[stop])
        parents = reaching[: np.searchsorted(states.tensors[reaching], fewest)]
        if parents.size == 0:
            return None
        added = self._added(
            bytes_before[stop] - bytes_before[states.tensors[parents]],
            np.minimum(states.computation[parents], self._profile.compute_after[stop]),
        )
        lost = states.lost[parents]
        self._enter(stop, parents, lost + added.residual)
        ended = lost + added.hidden
        self._enter(stop, parents, ended)
        if groups_left < 2:
            return None  # only the plans that end here matter
        limit = self._lost - self._tie
        j, parent = np.nonzero(ended + self._rest[groups_left, stop] < limit)
        lost, left = ended[j, parent], added.left[j, parent]
        # No further group starts before the next tensor is produced: waiting loses nothing.
        left = np.minimum(left, self._profile.compute_after[stop + 1])
        promising = lost + self._bound(stop, left) < limit
        j, parent, lost, left = j[promising], parent[promising], lost[promising], left[promising]
        if lost.size == 0:
            return None
        stay = front.enter(lost - (1 - self._m) * left, lost + (self._M - 1) * left)
        if stay.size == 0:
            return None
        return SearchStates(
            np.full(stay.size, stop), left[stay], lost[stay], parents[parent[stay]], j[stay]
        )

    def _enter(self, stop: int, parents: _Indices, lost: _Array) -> None:
        """Record the plan with the least loss [J, states] that ends with one more group."""
        j, column = divmod(int(lost.argmin()), lost.shape[1])
        total = float(lost[j, column] + self._ending[stop])
        if not total < self._lost - self._tie:
            return
        self._lost = total
        stops, chosen = groups_before(self._levels, int(parents[column]))
        self._stops = [*stops, stop, len(self._profile.tensors)]
        threads = [*self._threads[[*chosen, j]], self._ending_threads[stop]]
        self._plan_threads = list(map(int, threads))

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if self._m < 0:
            notes.append(
                "under this cost model an all-reduce may be faster during computation than alone "
                f"(Assumption 2 does not hold): pruned with {self._m:.3g} instead of 0 (Lemma 3)"
            )
        if self._M > 1:
            notes.append(
                "under this cost model overlapping may be slower than one after the other "
                f"(Assumption 3 does not hold): pruned with {self._M:.3g} instead of 1 (Lemma 4)"
            )
        return tuple(notes)
