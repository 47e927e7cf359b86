"""From plans with the least backward to one with the least step, where updates take time.

LIBRA's programs end with the last all-reduce, and there the union of two groups that both start
after backward is never slower. Not so with updates: while the second is sent, the tensors of the
first are updated. So what the programs find is changed, one thing at a time, until no change makes
the step shorter, from several beginnings. That finds no optimum for certain; how often it does on
small problems is what its test holds it to.
"""

from collections.abc import Iterator, Sequence

from tf_libra.cost_model import CostModel
from tf_libra.model.profile import BackwardProfile
from tf_libra.simulation.many import steps_of_many

_TIE = 1e-9
_CUTS = 16  # places at which a group may be cut

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
    from one to the other; the best is taken, and the next looked for, until none helps.

    Args:
      profile: the gradients, with their updates.
      cost: the cost model.
      beginnings: what to change; of equal steps the first.
      allowed: R.
      max_groups: K; None: groups are given, and only threads change.
    """
    known: dict[Choice, float] = {}
    for beginning in beginnings:
        best = beginning
        while True:
            around = {best, *_changes(profile, best, allowed, max_groups)}
            if new := sorted(around - known.keys()):
                steps = steps_of_many(profile, cost, *zip(*new, strict=True))
                known |= zip(new, steps.tolist(), strict=True)
            least = min(sorted(around), key=known.__getitem__)
            if known[least] >= known[best] * (1 - _TIE):
                break
            best = least
    return min(known, key=known.__getitem__)


def even_groups(profile: BackwardProfile, num_groups: int, num_threads: int) -> Choice:
    """Groups of about equal bytes."""
    stops = (*_cuts(profile, 0, len(profile.tensors), num_groups - 1), len(profile.tensors))
    return stops, (num_threads,) * len(stops)


def _changes(
    profile: BackwardProfile, choice: Choice, allowed: Sequence[int], max_groups: int | None
) -> Iterator[Choice]:
    stops, threads = choice
    starts = (0, *stops[:-1])
    for index, (start, stop) in enumerate(zip(starts, stops, strict=True)):
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
