"""Analysis of a traced step: which variables may change before gradients have arrived.

A rank cannot complete an all-reduce before all ranks have begun the step. So what is computed from
an averaged gradient changes no variable earlier, whatever the ranks do between two steps.
"""

from collections.abc import Sequence

from tf_libra.capture.dataflow.interpreter import Frame, Interpreter, Value, members, union
from tf_libra.capture.dataflow.traced_graph import WRITES, Node, TracedGraph, handle_inputs

_WAITS = 1  # label of values that are computed from a gradient


def find_early_writes(trace: TracedGraph) -> frozenset[int]:
    """Returns the inputs of a trace that hold variables which a write may change too early.

    Args:
        trace: of a finished graph.
    """
    walk = _WaitInterpreter(trace.functions)
    labels = {name: 2 << index for index, name in enumerate(trace.body.arguments)}
    walk.run(trace.body, labels)
    return frozenset(member - 1 for member in members(walk.early))


class _WaitInterpreter(Interpreter):
    """Labels are `_WAITS`, and the inputs of the graph that a handle may stand for, from 1.

    Attributes:
        early: the inputs whose variables are written early.
    """

    early = 0

    def evaluate(self, node: Node, frame: Frame) -> Value:
        if node.op == "LibraAllReduce":
            return _WAITS
        inputs = frame.inputs(node)
        value = self.control_flow(node, inputs, frame.condition)
        return self._evaluate_op(node, inputs, frame.condition) if value is None else value

    def evaluate_opaque(self, node: Node, inputs: Sequence[int], condition: int) -> int:
        for function in node.functions:
            self.call(function, self.opaque_arguments(function, inputs, 0), condition)
        return 0

    def _evaluate_op(self, node: Node, inputs: list[int], condition: int) -> int:
        if node.op == "Identity" and node.is_resource:
            return inputs[0]
        if WRITES.match(node.op):
            handles = handle_inputs(node.op, len(inputs))
            operands = [labels for i, labels in enumerate(inputs) if i not in handles]
            if not (union(operands) | condition) & _WAITS:
                self.early |= union(inputs[i] for i in handles) & ~_WAITS
        return union(inputs) & _WAITS

    def _branches(self, node: Node, inputs: list[int], condition: int) -> tuple[int, ...]:
        # A value waits if it does in every branch: one that is taken waits for no other.
        predicate, *operands = inputs
        condition |= predicate & _WAITS
        results = [self.call(name, operands, condition) for name in node.functions]
        return tuple(
            union(labels) & ~_WAITS
            | (_WAITS if condition & _WAITS or all(label & _WAITS for label in labels) else 0)
            for labels in zip(*results, strict=True)
        )

    def _loop(self, node: Node, inputs: list[int], condition: int) -> tuple[int, ...]:
        handles = [labels & ~_WAITS for labels in inputs]  # a loop may replace what waits
        for function in node.functions:
            self.call(function, handles, condition)
        return tuple(handles)
