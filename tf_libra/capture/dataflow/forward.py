"""The flow of labelled values in a trace: into which variables, and whether out of the step.

Forwards from few nodes, in a graph that may still be traced, and through what variables hold.
`sources` answers the other question, from where all that a finished trace writes has come.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tf_libra.capture.traced_graph import BRANCHES, CALLS, LOOPS, WRITES
from tf_libra.capture.variables import variables_of

Labels = frozenset[str]
NOTHING: Labels = frozenset()
_NO_NAME_OF_AN_ARGUMENT = re.compile(r"\W")


@dataclass(frozen=True)
class Value:
    """One output of a node.

    Attributes:
        labels: of what it was computed from.
        variable: the id of the variable whose handle it is; None of anything else.
    """

    labels: Labels = NOTHING
    variable: int | None = None


@dataclass(frozen=True)
class Derivative:
    """A node that is the gradient of something by another one of the same graph.

    Attributes:
        of: that node's name in its graph.
        relabelled: what becomes, on the gradient, of a label of that node; None: it is dropped.
    """

    of: str
    relabelled: Callable[[str], str | None]


@dataclass
class ForwardFlow:
    """The variables and results that labelled values reach in a graph.

    Attributes:
        written: what reaches each variable, by the variable's id.
        returned: what reaches the results.
    """

    written: dict[int, Labels] = field(default_factory=dict)
    returned: Labels = NOTHING


def flow(
    graph: Any,
    label: Callable[[Any], str | None] = lambda node: None,
    ends_at: Callable[[Any], bool] = lambda node: False,
    arguments: Sequence[Any] = (),
    results: Sequence[Any] = (),
    held: Mapping[int, Labels] | None = None,
    derivative: Callable[[Any], Derivative | None] = lambda node: None,
) -> ForwardFlow:
    """Follows labelled values through a traced graph and the functions that it calls.

    What is written to a variable comes out again where the variable is read.

    Args:
        graph: a `FuncGraph`; its captures tell which variables it writes.
        label: of a `NodeDef`: the label that its outputs get; None for none.
        ends_at: of a `NodeDef`: whether its outputs carry no label, whatever goes in.
        arguments: variables that the function may have been given as arguments.
        results: tensors that the function returns.
        held: what variables hold labelled from the start, by the variable's id.
        derivative: of a `NodeDef`: the gradient that it is; None of anything else.
    """
    definition = graph.as_graph_def()
    bodies = {body.signature.name: body for body in definition.library.function}
    variables = {id(one.handle): id(one) for one in variables_of(graph)}
    given = {
        inside.op.name: [Value(variable=variables.get(id(outside)))]
        for outside, inside in graph.captures
    }
    for one in arguments:
        if getattr(one.handle, "graph", None) is graph:
            given[one.handle.op.name] = [Value(variable=id(one))]
    walk = _Walk(bodies, label, ends_at, derivative, dict(held or {}))
    before = None
    while before != walk.written:  # what is read may be written further down, in the step before
        before = dict(walk.written)
        values = walk.nodes(definition.node, given, NOTHING)
    returned = [value for one in results for value in values.get(one.op.name, ())]
    return ForwardFlow(walk.written, _united(returned))


class _Walk:
    def __init__(
        self,
        bodies: Mapping[str, Any],
        label: Callable[[Any], str | None],
        ends_at: Callable[[Any], bool],
        derivative: Callable[[Any], Derivative | None],
        written: dict[int, Labels],
    ) -> None:
        self.written = written
        self._bodies = bodies
        self._label = label
        self._ends_at = ends_at
        self._derivative = derivative

    def nodes(
        self, nodes: Sequence[Any], given: Mapping[str, list[Value]], condition: Labels
    ) -> dict[str, list[Value]]:
        """Outputs of nodes, by name; `given` are those of arguments and captures.

        A node that calls no function has one output, which stands for all of its own.
        """
        values = dict(given)
        for node in nodes:  # inputs come before consumers
            if node.name in given:
                continue
            inputs = [_find(one, values) for one in node.input if not one.startswith("^")]
            outputs = self._outputs(node, inputs, condition)
            name = self._label(node)
            if name is not None:
                outputs = [Value(one.labels | {name}, one.variable) for one in outputs]
            gradient = self._derivative(node)
            if gradient is not None:
                of = _united(_named(gradient.of, values))
                labels = frozenset(filter(None, map(gradient.relabelled, of)))
                outputs = [Value(one.labels | labels, one.variable) for one in outputs]
            values[node.name] = outputs
        return values

    def _outputs(self, node: Any, inputs: list[Value], condition: Labels) -> list[Value]:
        if self._ends_at(node):
            return [Value()]
        called = functions_of(node, self._bodies)
        if called:
            return self._call(node, called, inputs, condition)
        labels = _united(inputs)
        handles = [one.variable for one in inputs if one.variable is not None]
        for variable in handles:
            labels |= self.written.get(variable, NOTHING)
        if WRITES.match(node.op):
            for variable in handles:
                self.written[variable] = labels | condition
        handle = inputs[0].variable if node.op == "Identity" else None
        return [Value(NOTHING if handle is not None else labels, handle)]

    def _call(
        self, node: Any, called: list[Any], inputs: list[Value], condition: Labels
    ) -> list[Value]:
        if node.op in CALLS:
            return self._body(called[0], inputs, condition)
        if node.op in BRANCHES:
            chosen_by, given = inputs[0].labels, inputs[1:]
            results = [self._body(body, given, condition | chosen_by) for body in called]
            return [
                Value(_united(one) | chosen_by, one[0].variable)
                for one in zip(*results, strict=True)
            ]
        if node.op in LOOPS:
            return self._loop(node, inputs, condition)
        # Something of tf.data, say: what goes in may come out anywhere.
        labels = _united(inputs)
        for body in called:
            first = len(inputs) - len(body.signature.input_arg)
            given = [Value(labels, one.variable) for one in inputs[max(first, 0) :]]
            given = [Value(labels)] * max(-first, 0) + given
            labels |= _united(self._body(body, given, condition))
        return [Value(labels)]

    def _loop(self, node: Any, inputs: list[Value], condition: Labels) -> list[Value]:
        test, body = (self._bodies[node.attr[name].func.name] for name in ("cond", "body"))
        state = inputs
        while True:
            lasts = _united(self._body(test, state, condition))
            after = self._body(body, state, condition | lasts)
            merged = [
                Value(one.labels | other.labels | lasts, one.variable)
                for one, other in zip(state, after, strict=True)
            ]
            if merged == state:
                return state
            state = merged

    def _body(self, body: Any, given: Sequence[Value], condition: Labels) -> list[Value]:
        names = [argument.name for argument in body.signature.input_arg]
        arguments = {name: [value] for name, value in zip(names, given, strict=True)}
        values = self.nodes(body.node_def, arguments, condition)
        return [_find(body.ret[one.name], values) for one in body.signature.output_arg]


def _find(source: str, values: Mapping[str, list[Value]]) -> Value:
    """The value that an input names: "node", "node:1" or, in a function, "node:output:1"."""
    name, *rest = source.split(":")
    outputs = values.get(name, [Value()])
    index = int(rest[-1]) if rest else 0
    return outputs[index] if len(outputs) > 1 and index < len(outputs) else outputs[0]


def _named(name: str, values: Mapping[str, list[Value]]) -> list[Value]:
    """The outputs of a node, or an argument: functions write the names of these differently."""
    return values.get(name) or values.get(_NO_NAME_OF_AN_ARGUMENT.sub("_", name).lower(), [])


def functions_of(node: Any, bodies: Mapping[str, Any]) -> list[Any]:
    """The `FunctionDef`s that a node calls, of those that `bodies` has by name."""
    functions = [f for value in node.attr.values() for f in (value.func, *value.list.func)]
    return [bodies[function.name] for function in functions if function.name in bodies]


def _united(values: Sequence[Value]) -> Labels:
    return NOTHING.union(*(value.labels for value in values))


def nodes_of(graph: Any) -> Iterator[Any]:
    """All `NodeDef`s of a graph, those of the functions in it included."""
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def
