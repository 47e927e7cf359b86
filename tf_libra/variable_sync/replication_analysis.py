"""Analysis of which variables a step keeps equal on all ranks, by what flows into them.

What is averaged over the ranks is the same everywhere, and so is what is computed of that alone.
What a step computes of a rank's own data is not: moving averages of batch normalization, metrics,
accumulated gradients.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

from tf_libra.capture.dataflow.sources import OWN, REDUCED, SourceFlow


class Replication(StrEnum):
    """Relation between the values that the ranks have of a variable."""

    SHARED = "shared"  # has to be equal
    OWN = "own"  # may differ
    DERIVED = "derived"  # is as equal as what it is computed of
    DATA = "data"  # nothing trains it: equal or not, it is the script's affair


@dataclass(frozen=True)
class Traits:
    """Properties of a variable that the graph does not show.

    Attributes:
        trainable: as it was created.
        is_own: whether it is the rank's own for sure: so named by the user, or a random state.
    """

    trainable: bool
    is_own: bool = False


@dataclass(frozen=True)
class Classification:
    """One variable, or tensor that was captured, of a trace.

    Attributes:
        replication: as far as one rank can tell.
        computed_of: inputs of the graph that it is computed of, if it is derived.
        constants: the constants that it is computed of, if it is derived.
    """

    replication: Replication
    computed_of: frozenset[int] = frozenset()
    constants: tuple[str, ...] = ()


def classify(flow: SourceFlow, variables: Mapping[int, Traits]) -> dict[int, Classification]:
    """Classifies each variable, as far as one rank can tell.

    Args:
        flow: of the trace.
        variables: by input of the graph.
    """
    own = {i for i, traits in variables.items() if traits.is_own} | set(flow.random_states)
    trained = _trained(flow, variables, own)
    own |= _computed_of(own, flow, trained)
    shared = _closure(trained, flow, lambda i: i in variables and i not in own)
    found = {}
    for i in variables:
        written = flow.writes.get(i)
        if i in shared:  # trained, or flows into that without being averaged: a learning rate
            found[i] = Classification(Replication.SHARED)
        elif i in own:
            found[i] = Classification(Replication.OWN)
        elif written is None:
            found[i] = Classification(Replication.DATA)
        else:
            constants = tuple(one.hex() for one in flow.constants_of(written))
            computed_of = frozenset(flow.inputs_of(written)) - {i}
            found[i] = Classification(Replication.DERIVED, computed_of, constants)
    return found


def _trained(flow: SourceFlow, variables: Mapping[int, Traits], own: Set[int]) -> set[int]:
    """Finds variables that averaged gradients are written to, and trainable ones that stay as is.

    A weight may get the gradients by way of an optimizer's slots. A variable that a script has made
    by itself may be trainable by default: it is no weight if no gradient is computed of it.
    """
    reduced = {i for i, written in flow.writes.items() if written & REDUCED}
    found = reduced - own
    without_gradient = reduced - set(flow.inputs_of(flow.averaged))
    may_be_slot = {i for i, traits in variables.items() if not traits.trainable} | without_gradient
    of_weights = set()
    for i, traits in variables.items():
        if traits.trainable and i not in own:
            slots = _closure([i], flow, lambda j: j in variables and j in may_be_slot)
            of_weights |= slots
            if i not in flow.writes or slots & reduced:
                found.add(i)
    # What a compression leaves out of a rank's own gradients, say, is made of what is reduced, too.
    mixed = {i for i in found if flow.writes.get(i, 0) & OWN} - of_weights
    return (found - mixed) & set(variables)


def _computed_of(own: Set[int], flow: SourceFlow, trained: Set[int]) -> set[int]:
    """Finds what is computed of a rank's own data, directly or not, except what is trained."""
    found = set(own)
    grows = True
    while grows:
        more = {
            i
            for i, written in flow.writes.items()
            if i not in found | trained
            and (written & OWN or not found.isdisjoint(flow.inputs_of(written)))
        }
        found |= more
        grows = bool(more)
    return found


def _closure(start: Iterable[int], flow: SourceFlow, goes_on: Callable[[int], bool]) -> set[int]:
    found, waiting = set(start), list(start)
    while waiting:
        for i in flow.inputs_of(flow.writes.get(waiting.pop(), 0)):
            if i not in found and goes_on(i):
                found.add(i)
                waiting.append(i)
    return found


@dataclass(frozen=True)
class RankReport:
    """Report of one rank on one variable.

    Attributes:
        replication: see `Classification`.
        computed_of: names.
        constants: see `Classification`.
        digest: of its value; empty where that does not matter.
    """

    replication: Replication
    computed_of: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    digest: str = ""


def resolve_across_ranks(ranks: Sequence[Mapping[str, RankReport]]) -> set[str]:
    """The variables that have to be equal, by what all ranks say; the same on every rank.

    What is derived has to be equal where all that it is computed of is: a moving average of
    weights. Of other constants on another rank, it counts what that rank has: a batch's size.
    """
    everywhere = set.intersection(*(set(rank) for rank in ranks))
    shared = {name for name in everywhere if _all(ranks, name, Replication.SHARED)}
    equal = shared | {
        name
        for name in everywhere
        if _all(ranks, name, Replication.DATA) and len({rank[name].digest for rank in ranks}) == 1
    }
    derived = {
        name
        for name in everywhere - equal
        if all(
            rank[name].replication in (Replication.SHARED, Replication.DERIVED) for rank in ranks
        )
        and len({rank[name].constants for rank in ranks}) == 1
    }
    while True:
        wrong = {
            name
            for name in derived
            if any(not set(rank[name].computed_of) <= equal | derived for rank in ranks)
        }
        if not wrong:
            return shared | derived
        derived -= wrong


def _all(ranks: Sequence[Mapping[str, RankReport]], name: str, replication: Replication) -> bool:
    return all(rank[name].replication is replication for rank in ranks)
