"""From plans with the least backward to one with the least step, where updates take time.

LIBRA's programs end with the last all-reduce, and there the union of two groups that both start
after backward is never slower. Not so with updates: while the second is sent, the tensors of the
first are updated. So what the programs find is changed, one thing at a time, until no change makes
the step shorter, from several beginnings. That finds no optimum for certain; how often it does on
small problems is what its test holds it to.
"""

from collections.abc import Iterable, Iterator, Sequence

from tf_libra.cost_model import CostModel
from tf_libra.model.profile import BackwardProfile
from tf_libra.simulation.many import steps_of_many

_TIE = 1e-9
_CUTS = 16  # places at which a group may be cut
# Groups of all plans that are looked at, in sum; and how many rounds of changes these are for at
# least. Where the changes of all groups would be more, a round is of some groups, the last ones
# first: updates run beside them.
_MOST_GROUPS = 2**21
_ROUNDS = 16

Choice = tuple[tuple[int, ...], tuple[int, ...]]
"""Where groups end, and their threads."""


def least_step(
    profile: BackwardProfile,
    cost: CostModel,
    beginnings: Sequence[Choice],
    allowed: Sequence[int],
    max_groups: int | None,
) -> Choice:
    """Returns the groups and threads with the shortest step that are found from some beginnings.

    A change gives a group other threads, cuts it in two, joins it with the next, or moves tensors
    from one to the other; the best is taken, and the next looked for, until none helps. Of plans of
    hundreds of groups only so much is looked at as takes seconds.

    Args:
      profile: the gradients, with their updates.
      cost: the cost model.
      beginnings: what to change; of equal steps the first.
      allowed: R.
      max_groups: K; None: groups are given, and only threads change.
    """
    known: dict[Choice, float] = {}

    def look_at(choices: Iterable[Choice]) -> int:
        """Simulates those that are not known; returns how many groups these had."""
        new = [one for one in dict.fromkeys(choices) if one not in known]
        if new:
            steps = steps_of_many(profile, cost, *zip(*new, strict=True))
            known.update(zip(new, steps.tolist(), strict=True))
        return sum(len(stops) for stops, _ in new)

    changes_per_group = len(allowed) + (0 if max_groups is None else 2 + 3 * _CUTS)
    left = _MOST_GROUPS - look_at(beginnings)
    for beginning in sorted(dict.fromkeys(beginnings), key=known.__getitem__):
        best, end = beginning, 0  # the last group of a round, 0: of the plan
        unchanged = 0  # groups in a row that no change helps
        while left > 0 and unchanged < len(best[0]):
            some = _some_groups(len(best[0]), end, changes_per_group)
            around = sorted({best, *_changes(profile, best, allowed, max_groups, some)})
            left -= look_at(around)
            least = min(around, key=known.__getitem__)
            if known[least] < known[best] * (1 - _TIE):
                end = 0 if some.stop == len(best[0]) else min(some.stop, len(least[0]))
                best, unchanged = least, 0
            else:
                end, unchanged = some.start, unchanged + len(some)
    return min(known, key=known.__getitem__)


def _some_groups(count: int, end: int, changes_per_group: int) -> range:
    """The groups before `end`, or the last ones, whose changes a round looks at."""
    stop = end or count
    most = max(_MOST_GROUPS // (_ROUNDS * changes_per_group * count), 1)
    return range(max(stop - most, 0), stop)


def even_groups(profile: BackwardProfile, num_groups: int, num_threads: int) -> Choice:
    """Groups of about equal bytes."""
    stops = (*_cuts(profile, 0, len(profile.tensors), num_groups - 1), len(profile.tensors))
    return stops, (num_threads,) * len(stops)


def _changes(
    profile: BackwardProfile,
    choice: Choice,
    allowed: Sequence[int],
    max_groups: int | None,
    some: Iterable[int],
) -> Iterator[Choice]:
    """Changes of some groups."""
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
            if index:  # what is before the cut goes to the group before
                yield (*stops[: index - 1], cut, *stops[index:]), threads
            if more:  # what is behind it to the group after
                yield (*stops[:index], cut, *stops[index + 1 :]), threads


def _cuts(profile: BackwardProfile, start: int, stop: int, count: int) -> list[int]:
    """At most so many places to cut a group: all that there are, or parts of about equal bytes."""
    if stop - start - 1 <= count:
        return list(range(start + 1, stop))
    low, high = profile.bytes_before[[start, stop]].tolist()
    edges = [low + (high - low) * part / (count + 1) for part in range(1, count + 1)]
    found = profile.bytes_before.searchsorted(edges).clip(start + 1, stop - 1)
    return sorted(set(found.tolist()))
