"""Subgraphs of a trace that one stage runs in one call, with all inputs that they need."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tf_libra.model_parallel.capture.step_graph import StepGraph


@dataclass(frozen=True)
class Subgraph:
    """The ops of a stage for one microbatch, forward or backward, or for a round of the update.

    Attributes:
        ops: names, each behind those that it takes from.
        arguments: names of the step's arguments that it takes.
        takes: names of other tensors that it is given: received, averaged gradients, or of the
            stage's part before.
        gives: names of the tensors that it returns.
    """

    ops: tuple[str, ...]
    arguments: tuple[str, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True)
class Gathered:
    """Ops with what they need; each in the order in which it was found.

    Attributes:
        ops: places.
        arguments: names of the step's arguments.
        takes: names of tensors that are given.
    """

    ops: set[int]
    arguments: dict[str, None]
    takes: dict[str, None]

    def part(self, graph: StepGraph, gives: Iterable[str]) -> Subgraph:
        """Returns the subgraph of these ops that returns the tensors of the given names."""
        return Subgraph(
            tuple(graph.ops[place].name for place in sorted(self.ops)),
            tuple(sorted(self.arguments, key=graph.arguments.index)),
            tuple(sorted(self.takes)),
            tuple(dict.fromkeys(gives)),
        )


def gathered(
    graph: StepGraph,
    members: Iterable[int],
    wanted: Iterable[Any],
    is_given: Callable[[Any, int], bool],
) -> Gathered:
    """Ops, and those that have to be computed with them.

    Args:
        graph: of which they are.
        members: places of ops that belong to the part.
        wanted: tensors that it hands out.
        is_given: of a tensor, and the place of its op, whether the part gets it.
    """
    found = Gathered(set(members), {}, {})
    waiting = [one for place in sorted(found.ops) for one in graph.ops[place].inputs]
    waiting += wanted
    while waiting:
        one = waiting.pop()
        place = graph.op_index[one.op.name]
        if place in found.ops or one.op.name in graph.captures:
            continue
        if one.op.name in graph.arguments:
            found.arguments[one.op.name] = None
        elif is_given(one, place):
            found.takes[one.name] = None
        else:
            found.ops.add(place)
            waiting += one.op.inputs
    return found
