"""The values that a traced step writes to its variables, and the sources they come from.

`forward` answers the other question, where a few values go to while the step is being traced.

A set of sources is an integer with a bit for each: sets of thousands are united in no time. Sources
are inputs of the graph, and small constants, which is what the size of a batch becomes.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from tf_libra.capture.traced_graph import BRANCHES, CALLS, LOOPS, WRITES, Body, Node, TracedGraph
from tf_libra.internal import tf_internal

# What is the rank's own: data, iterators, random numbers, whatever cannot be looked into.
OWN = 1
# What all ranks have alike because it was reduced over them.
REDUCED = 2
_FIRST_INPUT = 2

_REDUCES = re.compile(
    r"LibraAllReduce$|Horovod(Grouped)?All(reduce|gather)|HorovodBroadcast|"
    r"Collective(Reduce|Gather|Bcast)"
)
# Parts of what was reduced, another one on each rank.
_DEALS = re.compile(r"Horovod(Grouped)?Reducescatter|HorovodAlltoall")
_DRAWS = re.compile(r"Rng(ReadAndSkip|Skip)|Stateful(Standard|Truncated|Uniform|Random)")
# Stateful for the sake of order alone.
_NEUTRAL = re.compile(r"(ReadVariableOp|ResourceGather(Nd)?|VarIsInitializedOp|VariableShape)$")

# One mask for all outputs of a node, or one for each.
_Value = int | tuple[int, ...]


@dataclass(frozen=True)
class SourceFlow:
    """The flow into the variables of one trace, as sets of sources.

    Attributes:
        writes: by input of the graph, of the variables that it may write: all that may flow into
            them without being reduced over the ranks on the way, conditions included.
        random_states: inputs from which random numbers are drawn.
        num_inputs: of the graph.
        constants: the values of the constants that are sources.
        averaged: what flows into that which is reduced over the ranks.
    """

    writes: Mapping[int, int]
    random_states: frozenset[int]
    num_inputs: int
    constants: tuple[bytes, ...]
    averaged: int

    def inputs_of(self, sources: int) -> Iterator[int]:
        """The inputs of the graph that are in a set."""
        return (one for one in _members(sources) if one < self.num_inputs)

    def constants_of(self, sources: int) -> list[bytes]:
        """The constants that are in a set, sorted by their values."""
        found = (one - self.num_inputs for one in _members(sources))
        return sorted(self.constants[one] for one in found if one >= 0)


def source(index: int) -> int:
    """The set of one input of the graph."""
    return 1 << (_FIRST_INPUT + index)


def _members(sources: int) -> Iterator[int]:
    sources >>= _FIRST_INPUT
    while sources:
        lowest = sources & -sources
        yield lowest.bit_length() - 1
        sources ^= lowest


def flow(graph: TracedGraph, told_apart: Iterable[int]) -> SourceFlow:
    """Finds what flows into the variables of a trace.

    Args:
        graph: the trace.
        told_apart: inputs that are sources of their own, variables among them; all others are the
            rank's own data.
    """
    chosen = set(told_apart)
    masks = [source(i) if i in chosen else OWN for i in range(len(graph.body.arguments))]
    walk = _Walk(graph.functions, len(masks))
    walk.run(graph.body, masks, condition=0)
    constants = tuple(walk.constants)
    return SourceFlow(
        walk.writes, frozenset(walk.random_states), len(masks), constants, walk.averaged
    )


class _Walk:
    """Follows values through a graph. Sets only grow, so it comes to an end."""

    def __init__(self, functions: Mapping[str, Body], num_inputs: int) -> None:
        self.writes: dict[int, int] = {}
        self.random_states: set[int] = set()
        self.constants: dict[bytes, int] = {}
        self.averaged = 0
        self._functions = functions
        self._num_inputs = num_inputs
        self._known: dict[tuple[str, tuple[int, ...], int], tuple[int, ...]] = {}

    def run(self, body: Body, masks: Sequence[int], condition: int) -> tuple[int, ...]:
        """Evaluates a body whose arguments have these sources; returns those of its results."""
        values: dict[str, _Value] = dict(zip(body.arguments, masks, strict=True))
        arguments = set(body.arguments)
        changed = True
        while changed:  # nodes may stand before their inputs, and loops go round
            changed = False
            for node in body.nodes:
                if node.name in arguments:
                    continue
                value = self._node(node, values, condition)
                if values.get(node.name, 0) != value:
                    values[node.name] = value
                    changed = True
        return tuple(_at(values, reference) for reference in body.results)

    def _node(self, node: Node, values: Mapping[str, _Value], condition: int) -> _Value:
        if node.constant:
            return source(
                self._num_inputs + self.constants.setdefault(node.constant, len(self.constants))
            )
        inputs = [_at(values, reference) for reference in node.inputs]
        if node.functions:
            return self._calling(node, inputs, condition)
        if node.op == "IdentityN":
            return tuple(inputs)
        if node.op in ("Switch", "RefSwitch") and node.is_resource:
            return inputs[0]
        everything = _union(inputs)
        if _REDUCES.match(node.op):
            self.averaged |= everything
            return REDUCED
        if _DEALS.match(node.op):
            self.averaged |= everything
            return OWN
        if WRITES.match(node.op):
            value = _union(inputs[1:]) if node.op == "AssignVariableOp" else everything
            self._write(node, inputs, value | condition)
        elif _DRAWS.match(node.op):
            self.random_states.update(self._variables(node, inputs))
            self._write(node, inputs, OWN)
        return everything | (OWN if _is_own(node.op) else 0)

    def _write(self, node: Node, inputs: Sequence[int], value: int) -> None:
        for index in self._variables(node, inputs):
            self.writes[index] = self.writes.get(index, 0) | value

    def _variables(self, node: Node, inputs: Sequence[int]) -> list[int]:
        handles = _members(_union(_handles(node.op, inputs)))
        return [index for index in handles if index < self._num_inputs]

    def _calling(self, node: Node, inputs: list[int], condition: int) -> _Value:
        if node.op in CALLS:
            return self._call(node.functions[0], inputs, condition)
        if node.op in BRANCHES:
            return self._branches(node, inputs, condition)
        if node.op in LOOPS:
            return self._loop(node, inputs, condition)
        # Such as what a dataset does to each element.
        everything = _union(inputs) | OWN
        for name in node.functions:
            given = _given(self._functions[name], inputs, everything)
            self._call(name, given, condition | OWN)
        return everything

    def _call(self, name: str, inputs: Sequence[int], condition: int) -> tuple[int, ...]:
        key = (name, tuple(inputs), condition)
        if key not in self._known:
            body = self._functions[name]
            self._known[key] = (0,) * len(body.results)  # of a function that calls itself
            self._known[key] = self.run(body, inputs, condition)
        return self._known[key]

    def _branches(self, node: Node, inputs: list[int], condition: int) -> tuple[int, ...]:
        under, *given = inputs
        results = [self._call(name, given, condition | under) for name in node.functions]
        are_handles = self._functions[node.functions[0]].result_resources
        return tuple(
            _union(masks) | (0 if is_handle else under)
            for *masks, is_handle in zip(*results, are_handles, strict=True)
        )

    def _loop(self, node: Node, inputs: list[int], condition: int) -> tuple[int, ...]:
        test, body = node.functions
        are_handles = self._functions[body].result_resources
        masks, before = tuple(inputs), None
        while masks != before:
            before = masks
            under = _union(self._call(test, masks, condition))
            after = self._call(body, masks, condition | under)
            masks = tuple(
                one | other | (0 if is_handle else under)
                for one, other, is_handle in zip(masks, after, are_handles, strict=True)
            )
        return masks


def _given(body: Body, inputs: Sequence[int], leading: int) -> list[int]:
    """Returns the masks of a function's arguments, the last of which its node has captured."""
    count = len(body.arguments)
    captured = list(inputs[max(len(inputs) - count, 0) :])
    masks = [leading] * (count - len(captured)) + captured
    pairs = zip(masks, body.resources, strict=True)
    return [mask if is_handle else leading for mask, is_handle in pairs]


@functools.cache
def _is_own(op: str) -> bool:
    """Returns whether the results of an op depend on more than its inputs."""
    definition = tf_internal.find_op_definition(op)
    if definition is None:
        return True
    return bool(definition.is_stateful) and not _NEUTRAL.match(op) and not WRITES.match(op)


def _handles(op: str, inputs: Sequence[int]) -> list[int]:
    """Returns those of an op's inputs that are handles of variables."""
    definition = tf_internal.find_op_definition(op)
    if definition is None or len(definition.input_arg) != len(inputs):
        return list(inputs[:1])
    pairs = zip(definition.input_arg, inputs, strict=True)
    return [mask for argument, mask in pairs if argument.type == tf.resource.as_datatype_enum]


def _at(values: Mapping[str, _Value], reference: tuple[str, int]) -> int:
    name, index = reference
    value = values.get(name, 0)
    if isinstance(value, int):
        return value
    return value[index] if index < len(value) else 0


def _union(masks: Iterable[int]) -> int:
    result = 0
    for mask in masks:
        result |= mask
    return result
