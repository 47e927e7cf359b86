"""The flow of labelled values in a trace: the variables and the results that they reach.

The walk starts from a few nodes and passes through what variables hold. The module `sources`
answers the opposite question: the sources of all that a finished trace writes.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_libra.capture.dataflow.interpreter import Frame, Interpreter, Value, members, union
from tf_libra.capture.dataflow.traced_graph import WRITES, Body, Node, TracedGraph
from tf_libra.capture.variables import variables_of

Labels = frozenset[str]
NO_LABELS: Labels = frozenset()
_NOT_IN_ARGUMENT_NAMES = re.compile(r"\W")


@dataclass(frozen=True)
class Derivative:
    """A node that is the gradient with respect to another node of the same graph.

    Attributes:
        source: name of that other node.
        relabel: returns the gradient's label for a label of that node, or None to drop it.
    """

    source: str
    relabel: Callable[[str], str | None]


@dataclass(frozen=True)
class LabelFlow:
    """The variables and results that labelled values reach.

    Attributes:
        written: labels that reach each variable, by the variable's id.
        returned: labels that reach the results.
    """

    written: Mapping[int, Labels]
    returned: Labels


def follow_labels(
    trace: TracedGraph,
    variables: Mapping[str, int],
    *,
    label: Callable[[Node], str | None] = lambda node: None,
    ends_at: Callable[[Node], bool] = lambda node: False,
    results: Iterable[Any] = (),
    initial_labels: Mapping[int, str] | None = None,
    derivative: Callable[[Node], Derivative | None] = lambda node: None,
) -> LabelFlow:
    """Follows labelled values through a trace and the functions that it calls.

    A label that is written to a variable comes out again where the variable is read.

    Args:
        trace: the graph; it may still be traced.
        variables: see `variable_inputs`.
        label: returns the label that a node adds to its outputs, or None.
        ends_at: returns whether a node's outputs carry no label, whatever its inputs carry.
        results: tensors that the function returns.
        initial_labels: label that a variable holds from the start, by the variable's id.
        derivative: returns the derivative that a node is, or None.
    """
    numbers = {
        key: i
        for i, key in enumerate(dict.fromkeys((*variables.values(), *(initial_labels or {}))))
    }
    walk = _LabelInterpreter(trace.functions, len(numbers), label, ends_at, derivative)
    for key, name in (initial_labels or {}).items():
        walk.write(numbers[key], walk.set_of(name))
    frame = walk.run(trace.body, {name: 1 << numbers[key] for name, key in variables.items()})
    returned = union(frame.at((tensor.op.name, tensor.value_index)) for tensor in results)
    written = {key: walk.names_in(walk.writes[i]) for key, i in numbers.items() if i in walk.writes}
    return LabelFlow(written, walk.names_in(returned))


def variable_inputs(graph: Any, arguments: Iterable[Any] = ()) -> dict[str, int]:
    """Returns the id of the variable behind each input of a graph that is a handle.

    Args:
        graph: a `FuncGraph`, whose captures are its inputs.
        arguments: variables that the function may have received as arguments.
    """
    known = {id(variable.handle): id(variable) for variable in variables_of(graph)}
    inputs = {
        inner.op.name: known[id(outer)] for outer, inner in graph.captures if id(outer) in known
    }
    for variable in arguments:
        if getattr(variable.handle, "graph", None) is graph:
            inputs[variable.handle.op.name] = id(variable)
    return inputs


class _LabelInterpreter(Interpreter):
    """Numbers variables from 0, and labels after them."""

    def __init__(
        self,
        functions: Mapping[str, Body],
        num_variables: int,
        label: Callable[[Node], str | None],
        ends_at: Callable[[Node], bool],
        derivative: Callable[[Node], Derivative | None],
    ) -> None:
        super().__init__(functions)
        self._num_variables = num_variables
        self._handles = (1 << num_variables) - 1
        self._names: list[str] = []
        self._sets: dict[str, int] = {}
        self._label = label
        self._ends_at = ends_at
        self._derivative = derivative

    def set_of(self, name: str) -> int:
        """Returns the set of one label."""
        if name not in self._sets:
            self._sets[name] = 1 << (self._num_variables + len(self._names))
            self._names.append(name)
        return self._sets[name]

    def names_in(self, labels: int) -> Labels:
        """Returns the names of the labels in a set."""
        return frozenset(self._names[i] for i in members(labels >> self._num_variables))

    def evaluate(self, node: Node, frame: Frame) -> Value:
        if self._ends_at(node):
            return 0
        inputs = frame.inputs(node)
        value = self.control_flow(node, inputs, frame.condition)
        if value is None:
            value = self._evaluate_op(node, union(inputs), frame.condition)
        added = self._added_by(node, frame)
        return (
            value | added if isinstance(value, int) else tuple(element | added for element in value)
        )

    def evaluate_opaque(self, node: Node, inputs: Sequence[int], condition: int) -> int:
        labels = union(inputs) & ~self._handles
        for function in node.functions:
            arguments = self.opaque_arguments(function, inputs, labels)
            results = self.call(function, [value | labels for value in arguments], condition)
            labels |= union(results) & ~self._handles
        return labels

    def _evaluate_op(self, node: Node, inputs: int, condition: int) -> int:
        handles = list(members(inputs & self._handles))
        if handles and node.op == "Identity":
            return inputs
        labels = inputs & ~self._handles
        labels |= union(self.writes.get(variable, 0) for variable in handles)
        if WRITES.match(node.op):
            for variable in handles:
                self.write(variable, labels | condition)
        return labels

    def _added_by(self, node: Node, frame: Frame) -> int:
        name = self._label(node)
        added = 0 if name is None else self.set_of(name)
        derivative = self._derivative(node)
        if derivative is not None:
            source = frame.values.get(derivative.source)
            if source is None:  # a function writes the names of its arguments differently
                argument = _NOT_IN_ARGUMENT_NAMES.sub("_", derivative.source).lower()
                source = frame.values.get(argument, 0)
            labels = source if isinstance(source, int) else union(source)
            relabelled = filter(None, map(derivative.relabel, self.names_in(labels)))
            added |= union(map(self.set_of, relabelled))
        return added
