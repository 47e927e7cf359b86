"""The values that a traced step writes to its variables, and the sources they come from.

The module `forward` answers the opposite question: where a few values go while the step is traced.
Sources are inputs of the graph, and small constants, such as the size of a batch.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tf_libra.capture.dataflow.interpreter import Frame, Interpreter, Value, members, union
from tf_libra.capture.dataflow.traced_graph import (
    WRITES,
    Body,
    Node,
    TracedGraph,
    handle_inputs,
)
from tf_libra.internal import tf_internal

# Rank-local sources: data, iterators, random numbers, and ops whose results cannot be analyzed.
OWN = 1
# Results of a reduction over the ranks, equal on all of them.
REDUCED = 2
_NUM_FIXED = 2

_REDUCES = re.compile(
    r"LibraAllReduce$|Horovod(Grouped)?All(reduce|gather)|HorovodBroadcast|"
    r"Collective(Reduce|Gather|Bcast)"
)
# Each rank gets another part of the reduced tensor.
_SCATTERS = re.compile(r"Horovod(Grouped)?Reducescatter|HorovodAlltoall")
_DRAWS = re.compile(r"Rng(ReadAndSkip|Skip)|Stateful(Standard|Truncated|Uniform|Random)")
# Ops that are stateful only to keep their order.
_STATELESS = re.compile(r"(ReadVariableOp|ResourceGather(Nd)?|VarIsInitializedOp|VariableShape)$")


@dataclass(frozen=True)
class SourceFlow:
    """The flow into the variables of one trace, as sets of sources.

    Attributes:
        writes: for each input of the graph that is a written variable, by index: all sources that
            reach it without a reduction over the ranks on the way, conditions included.
        random_states: inputs from which random numbers are drawn.
        num_inputs: number of inputs of the graph.
        constants: the values of the constants that are sources.
        averaged: sources of all that is reduced over the ranks.
    """

    writes: Mapping[int, int]
    random_states: frozenset[int]
    num_inputs: int
    constants: tuple[bytes, ...]
    averaged: int

    def inputs_of(self, sources: int) -> Iterator[int]:
        """Yields the graph inputs in a set."""
        return (i for i in members(sources >> _NUM_FIXED) if i < self.num_inputs)

    def constants_of(self, sources: int) -> list[bytes]:
        """Returns the constants in a set, sorted by their values."""
        indices = (i - self.num_inputs for i in members(sources >> _NUM_FIXED))
        return sorted(self.constants[i] for i in indices if i >= 0)


def source(index: int) -> int:
    """Returns the set of one input of the graph."""
    return 1 << (_NUM_FIXED + index)


def find_sources(trace: TracedGraph, inputs: Iterable[int]) -> SourceFlow:
    """Finds the sources of the variables of a trace.

    Args:
        trace: of a finished graph.
        inputs: indices of the graph inputs that are sources of their own, variables among them;
            all other inputs are rank-local data.
    """
    chosen = set(inputs)
    arguments = {
        name: source(i) if i in chosen else OWN for i, name in enumerate(trace.body.arguments)
    }
    walk = _SourceInterpreter(trace.functions, len(arguments))
    walk.run(trace.body, arguments)
    return SourceFlow(
        walk.writes,
        frozenset(walk.random_states),
        len(arguments),
        tuple(walk.constants),
        walk.averaged,
    )


class _SourceInterpreter(Interpreter):
    def __init__(self, functions: Mapping[str, Body], num_inputs: int) -> None:
        super().__init__(functions)
        self.random_states: set[int] = set()
        self.constants: dict[bytes, int] = {}
        self.averaged = 0
        self._num_inputs = num_inputs

    def evaluate(self, node: Node, frame: Frame) -> Value:
        if node.constant:
            index = self.constants.setdefault(node.constant, len(self.constants))
            return source(self._num_inputs + index)
        inputs, condition = frame.inputs(node), frame.condition
        value = self.control_flow(node, inputs, condition)
        return self._evaluate_op(node, inputs, condition) if value is None else value

    def evaluate_opaque(self, node: Node, inputs: Sequence[int], condition: int) -> int:
        labels = union(inputs) | OWN
        for function in node.functions:
            arguments = self.opaque_arguments(function, inputs, labels)
            self.call(function, arguments, condition | OWN)
        return labels

    def _evaluate_op(self, node: Node, inputs: list[int], condition: int) -> int:
        labels = union(inputs)
        if _REDUCES.match(node.op):
            self.averaged |= labels
            return REDUCED
        if _SCATTERS.match(node.op):
            self.averaged |= labels
            return OWN
        if WRITES.match(node.op):
            value = union(inputs[1:]) if node.op == "AssignVariableOp" else labels
            self._write(node, inputs, value | condition)
        elif _DRAWS.match(node.op):
            self.random_states.update(self._variables(node, inputs))
            self._write(node, inputs, OWN)
        return labels | (OWN if _is_rank_local(node.op) else 0)

    def _write(self, node: Node, inputs: Sequence[int], value: int) -> None:
        for index in self._variables(node, inputs):
            self.write(index, value)

    def _variables(self, node: Node, inputs: Sequence[int]) -> list[int]:
        handles = union(inputs[i] for i in handle_inputs(node.op, len(inputs)))
        found = members(handles >> _NUM_FIXED)
        return [index for index in found if index < self._num_inputs]


@functools.cache
def _is_rank_local(op: str) -> bool:
    """Returns whether the results of an op depend on more than its inputs."""
    definition = tf_internal.find_op_definition(op)
    if definition is None:
        return True
    return bool(definition.is_stateful) and not _STATELESS.match(op) and not WRITES.match(op)
