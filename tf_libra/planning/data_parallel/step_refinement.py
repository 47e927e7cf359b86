"""Local search from plans with the least backward to one with the least step, with updates.

LIBRA's dynamic programs end with the last all-reduce, where merging two groups that both start
after backward is never slower. With updates it may be: while the second group is sent, the first
one's tensors are updated. So the search changes the programs' plans, one change at a time, until
none shortens the step, from several starts. The optimum is not guaranteed; the test bounds how
often small problems miss it.
"""

from collections.abc import Iterable, Iterator, Sequence

from tf_libra.cost_model import CostModel
from tf_libra.simulation.vectorized import vectorized_steps
from tf_libra.specs.backward_profile import BackwardProfile

_TIE = 1e-9
_CUTS = 16  # positions at which a group may be cut
# Total groups of all simulated plans, and the least number of rounds that share them. If the
# changes of all groups exceed a round, it takes some groups, the last first: updates overlap them.
_MOST_GROUPS = 2**21
_ROUNDS = 16

Choice = tuple[tuple[int, ...], tuple[int, ...]]
"""Ends of groups, and their threads."""


def least_step(
    profile: BackwardProfile,
    cost: CostModel,
    starts: Sequence[Choice],
    allowed: Sequence[int],
    max_groups: int | None,
) -> Choice:
    """Returns the groups and threads with the shortest step of a local search.

    A change gives a group other threads, cuts it in two, merges it with the next, or moves tensors
    between neighbours. The search takes the best change of each round until none helps. A budget
    keeps plans of hundreds of groups within seconds.

    Args:
      profile: the gradients, with their updates.
      cost: the cost model.
      starts: start plans; of equal steps the first wins.
      allowed: R.
      max_groups: K; None: groups are fixed and only threads change.
    """
    known: dict[Choice, float] = {}

    def simulate(choices: Iterable[Choice]) -> int:
        """Simulate the unknown choices; return their total number of groups."""
        new = [choice for choice in dict.fromkeys(choices) if choice not in known]
        if new:
            steps = vectorized_steps(profile, cost, *zip(*new, strict=True))
            known.update(zip(new, steps.tolist(), strict=True))
        return sum(len(stops) for stops, _ in new)

    changes_per_group = len(allowed) + (0 if max_groups is None else 2 + 3 * _CUTS)
    left = _MOST_GROUPS - simulate(starts)
    for start in sorted(dict.fromkeys(starts), key=known.__getitem__):
        best, end = start, 0  # the last group of a round, 0: of the plan
        unchanged = 0  # consecutive groups without a helpful change
        while left > 0 and unchanged < len(best[0]):
            some = _some_groups(len(best[0]), end, changes_per_group)
            around = sorted({best, *_changes(profile, best, allowed, max_groups, some)})
            left -= simulate(around)
            least = min(around, key=known.__getitem__)
            if known[least] < known[best] * (1 - _TIE):
                end = 0 if some.stop == len(best[0]) else min(some.stop, len(least[0]))
                best, unchanged = least, 0
            else:
                end, unchanged = some.start, unchanged + len(some)
    return min(known, key=known.__getitem__)


def _some_groups(count: int, end: int, changes_per_group: int) -> range:
    """Returns the groups before `end`, or the last ones, that a round changes."""
    stop = end or count
    most = max(_MOST_GROUPS // (_ROUNDS * changes_per_group * count), 1)
    return range(max(stop - most, 0), stop)


def even_groups(profile: BackwardProfile, num_groups: int, num_threads: int) -> Choice:
    """Returns groups of about equal bytes."""
    stops = (*_cuts(profile, 0, len(profile.tensors), num_groups - 1), len(profile.tensors))
    return stops, (num_threads,) * len(stops)


def _changes(
    profile: BackwardProfile,
    choice: Choice,
    allowed: Sequence[int],
    max_groups: int | None,
    some: Iterable[int],
) -> Iterator[Choice]:
    """Yield the changes of some groups."""
    stops, threads = choice
    for index in some:
        start, stop = stops[index - 1] if index else 0, stops[index]
        for r in allowed:
            yield stops, (*threads[:index], r, *threads[index + 1 :])
        if max_groups is None:
            continue
        more = index + 1 < len(stops)
        for r in threads[index : index + 2] if more else ():
            joined = (*threads[:index], r, *threads[index + 2 :])
            yield (*stops[:index], *stops[index + 1 :]), joined
        for cut in _cuts(profile, start, stop, _CUTS):
            if len(stops) < max_groups:
                twice = (*threads[: index + 1], *threads[index:])
                yield (*stops[:index], cut, *stops[index:]), twice
            if index:  # tensors before the cut go to the previous group
                yield (*stops[: index - 1], cut, *stops[index:]), threads
            if more:  # tensors after the cut go to the next group
                yield (*stops[:index], cut, *stops[index + 1 :]), threads


def _cuts(profile: BackwardProfile, start: int, stop: int, count: int) -> list[int]:
    """Returns at most `count` cuts of a group: all of them, or parts of about equal bytes."""
    if stop - start - 1 <= count:
        return list(range(start + 1, stop))
    low, high = profile.effective_before[[start, stop]].tolist()
    edges = [low + (high - low) * part / (count + 1) for part in range(1, count + 1)]
    found = profile.effective_before.searchsorted(edges).clip(start + 1, stop - 1)
    return sorted(set(found.tolist()))
