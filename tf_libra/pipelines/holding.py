"""The variables of a step in stages, on one rank: equal at first, then each of its own stage.

What a rank holds of other stages grows old with every step. It is brought up to date by the ranks
that have it, or let go in the meantime.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from tf_libra.backends.control import Control
from tf_libra.pipelines.step_graph import StepGraph
from tf_libra.pipelines.transport import Transport
from tf_libra.session import variables as variables_lib
from tf_libra.session.variables import Held


def held(graph: StepGraph) -> dict[str, Held]:
    """By placeholder the variables that a trace captures, in the order of its inputs."""
    concrete = graph.recording.concrete
    found = variables_lib.held(concrete, [None] * len(graph.arguments))
    inputs = concrete.graph.inputs
    return {inputs[one.index].op.name: one for one in found if one.is_variable}


@dataclass(frozen=True)
class Owned:
    """A variable that some ranks keep up to date.

    Attributes:
        held: the variable.
        ranks: those of its stage.
        is_needed: whether this rank computes with it.
        is_sum: whether each of the ranks adds to it what it sees, as to the total of a metric.
    """

    held: Held
    ranks: tuple[int, ...]
    is_needed: bool
    is_sum: bool


def owned(
    graph: StepGraph,
    stages: dict[str, int],
    ranks: Sequence[tuple[int, ...]],
    needed: frozenset[str],
) -> list[Owned]:
    """The variables of a trace that belong to a stage, in the order of its inputs.

    Args:
        graph: the trace.
        stages: by placeholder of a variable, its stage.
        ranks: by stage.
        needed: placeholders of the variables that this rank computes with.
    """
    found = []
    for name, one in held(graph).items():
        if name in stages:
            is_sum = graph.is_accumulator(name) and one.dtype.is_floating
            found.append(Owned(one, ranks[stages[name]], name in needed, is_sum))
    return found


class Holding:
    """What is known of the variables of one training function, on this rank."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._shared: set[int] = set()
        self._owned: dict[int, Owned] = {}
        self.has_let_go = False

    def share(self, control: Control, graph: StepGraph, may_copy: bool) -> tuple[list[str], int]:
        """Lets variables that are new start as those of rank 0; all ranks call it.

        Args:
            control: reaches them.
            graph: a trace that captures the variables.
            may_copy: whether those that differ get rank 0's values, or are refused.

        Returns:
            Names of what differed, and how many are new.

        Raises:
            ValueError: on every rank: a variable differs, and that is refused.
        """
        new = [one for one in held(graph).values() if one.key not in self._shared]
        self._shared |= {one.key for one in new}
        everyone = control.all_gather([one.digest() if one.is_number else "" for one in new])
        differing = [
            one for index, one in enumerate(new) if len({rank[index] for rank in everyone}) > 1
        ]
        if differing and not may_copy:
            raise ValueError(
                f"variable {differing[0].name!r} differs between the ranks, and"
                " broadcast_variables=False refuses that"
            )
        for one in differing:
            variables_lib.broadcast(control, one)
        return [one.name for one in differing], len(new)

    def own(self, variables: Iterable[Owned]) -> None:
        """These belong to stages, as a trace has it; what any trace needs here is needed."""
        for one in variables:
            before = self._owned.get(one.held.key)
            is_needed = one.is_needed or (before is not None and before.is_needed)
            self._owned[one.held.key] = Owned(one.held, one.ranks, is_needed, one.is_sum)

    def forget_owners(self) -> dict[int, Owned]:
        """Nothing belongs to anybody, for a step that is laid out anew; returns what did."""
        before, self._owned = self._owned, {}
        return before

    def share_sums_anew(self, before: dict[int, Owned]) -> None:
        """Where more or fewer ranks add to a variable than before: all together have its sum.

        All ranks have what `bring_back` has brought, an average over those before.
        """
        for key, one in self._owned.items():
            known = before.get(key)
            if one.is_sum and known is not None and len(known.ranks) != len(one.ranks):
                value = one.held.read_value()
                scale = tf.cast(len(known.ranks) / len(one.ranks), value.dtype)
                one.held.assign(value * scale)

    def let_go(self, rank: int) -> None:
        """Frees the memory of what this rank neither updates nor computes with.

        Until `bring_back` these variables have no elements, so that whatever uses them fails.
        """
        if self.has_let_go:
            return
        for one in self._owned.values():
            if rank not in one.ranks and not one.is_needed and one.held.is_number:
                one.held.assign(tf.zeros([0], one.held.dtype))
        self.has_let_go = True

    def bring_back(self, world_size: int, transport: Transport) -> None:
        """Brings all variables up to date on every rank, all of which call it.

        What the ranks of a stage add to, each for its samples, is averaged over them: the ratio of
        two sums, as most metrics are, is then that of all samples.

        Raises:
            tf.errors.OpError: a rank is gone or late.
        """
        own = transport.rank
        for one in self._owned.values():
            name, root = f"variable {one.held.name}", one.ranks[0]
            if one.is_sum and len(one.ranks) > 1 and own in one.ranks:
                total = transport.all_reduce(one.held.read_value(), one.ranks, f"{name}, averaged")
                one.held.assign(total / tf.cast(len(one.ranks), total.dtype))
            if own != root:
                one.held.assign(transport.receive(one.held.dtype, one.held.shape, root, name))
                continue
            for rank in range(world_size):
                if rank != root:
                    transport.send(one.held.read_value(), rank, name)
        self.has_let_go = False
