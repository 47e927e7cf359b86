"""Analysis of which variables are replicated, from the dataflow of a step.

An average over the ranks is the same everywhere, and so is a value that is computed from averages
alone. Values that a step computes from rank-local data differ: moving averages of batch
normalization, metrics, accumulated gradients.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

from tf_libra.capture.dataflow.sources import OWN, REDUCED, SourceFlow


class Replication(StrEnum):
    """Relation between the ranks' values of a variable."""

    SHARED = "shared"  # must be equal
    OWN = "own"  # may differ
    DERIVED = "derived"  # equal if all its sources are
    DATA = "data"  # not trained: the script may choose any values


@dataclass(frozen=True)
class Traits:
    """Properties of a variable that the graph does not show.

    Attributes:
        trainable: whether the variable was created trainable.
        is_own: whether it is certainly rank-local: listed by the user, or a random state.
    """

    trainable: bool
    is_own: bool = False


@dataclass(frozen=True)
class Classification:
    """Classification of one variable, or captured tensor, of a trace.

    Attributes:
        replication: relation between the ranks' values, as far as one rank can tell.
        computed_of: inputs of the graph from which a derived variable is computed.
        constants: constants from which a derived variable is computed.
    """

    replication: Replication
    computed_of: frozenset[int] = frozenset()
    constants: tuple[str, ...] = ()


def classify(flow: SourceFlow, variables: Mapping[int, Traits]) -> dict[int, Classification]:
    """Classifies each variable, as far as one rank can tell.

    Args:
        flow: dataflow of the trace.
        variables: variables by input of the graph.
    """
    own = {i for i, traits in variables.items() if traits.is_own} | set(flow.random_states)
    trained = _trained(flow, variables, own)
    own |= _computed_of(own, flow, trained)
    shared = _closure(trained, flow, lambda i: i in variables and i not in own)
    found = {}
    for i in variables:
        written = flow.writes.get(i)
        if i in shared:  # trained, or flows into a trained variable unaveraged: a learning rate
            found[i] = Classification(Replication.SHARED)
        elif i in own:
            found[i] = Classification(Replication.OWN)
        elif written is None:
            found[i] = Classification(Replication.DATA)
        else:
            constants = tuple(constant.hex() for constant in flow.constants_of(written))
            computed_of = frozenset(flow.inputs_of(written)) - {i}
            found[i] = Classification(Replication.DERIVED, computed_of, constants)
    return found


def _trained(flow: SourceFlow, variables: Mapping[int, Traits], own: Set[int]) -> set[int]:
    """Finds variables to which averages are written, and trainable variables without writes.

    A gradient may reach a weight through an optimizer's slots. A script's own variable may be
    trainable by default: it is a weight only if the step computes its gradient.
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
    # The residual of a gradient compression, for example, mixes reduced and rank-local values.
    mixed = {i for i in found if flow.writes.get(i, 0) & OWN} - of_weights
    return (found - mixed) & set(variables)


def _computed_of(own: Set[int], flow: SourceFlow, trained: Set[int]) -> set[int]:
    """Finds untrained variables that are computed, directly or not, from rank-local data."""
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
        computed_of: names of the variables from which it is computed.
        constants: see `Classification`.
        digest: digest of its value; empty if not needed.
    """

    replication: Replication
    computed_of: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    digest: str = ""


def resolve_across_ranks(ranks: Sequence[Mapping[str, RankReport]]) -> set[str]:
    """Returns the variables that must be equal, from all ranks' reports; the same on every rank.

    A derived variable must be equal if all its sources are, as a moving average of weights is. It
    may differ if the ranks computed it from different constants, such as the size of a batch.
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
