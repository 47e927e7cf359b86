"""Forward evaluation of a traced graph on sets of labels: the core of every forward walk.

An abstract interpreter gives each value of a graph a set of labels, such as the sources it was
computed from. It follows values into and out of functions, conditionals and loops. A subclass
says what an op does to the labels of its inputs. A set is an integer with one bit per label,
because unions of thousands of labels are then cheap. Sets only grow, so the evaluation ends.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tf_libra.capture.dataflow.traced_graph import BRANCHES, CALLS, LOOPS, Body, Node

# One set for all outputs of a node, or one per output.
Value = int | tuple[int, ...]


@dataclass
class Frame:
    """One evaluation of a graph or function.

    Attributes:
        values: labels of arguments and of the nodes evaluated so far, by name.
        condition: labels of the conditions under which the graph or function runs.
    """

    values: dict[str, Value]
    condition: int

    def inputs(self, node: Node) -> list[int]:
        """Returns the labels of a node's inputs."""
        return [self.at(reference) for reference in node.inputs]

    def at(self, reference: tuple[str, int]) -> int:
        """Returns the labels of one output of a node."""
        name, index = reference
        value = self.values.get(name, 0)
        if isinstance(value, int):
            return value
        return value[index] if index < len(value) else 0


class Interpreter(ABC):
    """Evaluates sets of labels forward through a graph and the functions that it calls.

    Attributes:
        writes: labels written to each variable so far, by a number of the variable.
    """

    def __init__(self, functions: Mapping[str, Body]) -> None:
        """Takes the function library of the graph."""
        self.writes: dict[int, int] = {}
        self._functions = functions
        self._num_growths = 0
        self._results: dict[tuple[str, tuple[int, ...], int], tuple[int, ...]] = {}

    @abstractmethod
    def evaluate(self, node: Node, frame: Frame) -> Value:
        """Returns the labels of a node's outputs."""

    def evaluate_opaque(self, node: Node, inputs: Sequence[int], condition: int) -> Value:
        """Returns the labels of an op that calls functions in a way of its own, as tf.data does."""
        return union(inputs)

    def decide(self, node: Node, predicate: int) -> int:
        """Returns the labels that what a predicate decides receives from the predicate."""
        return predicate

    def run(self, body: Body, arguments: Mapping[str, int]) -> Frame:
        """Evaluates the outermost graph until no variable gets another label.

        A value that is written further down is read further up in the next step.
        """
        while True:
            num_growths = self._num_growths
            self._results.clear()
            frame = self._evaluate_body(body, arguments, condition=0)
            if num_growths == self._num_growths:
                return frame

    def write(self, variable: int, labels: int) -> None:
        """Adds labels to those that are written to a variable."""
        before = self.writes.get(variable)
        after = (before or 0) | labels
        if after != before:
            self.writes[variable] = after
            self._num_growths += 1

    def control_flow(self, node: Node, inputs: list[int], condition: int) -> Value | None:
        """Evaluates calls, conditionals, loops and ops that forward inputs; None for other ops."""
        if node.functions:
            if node.op in CALLS:
                return self.call(node.functions[0], inputs, condition)
            if node.op in BRANCHES:
                return self._branches(node, inputs, condition)
            if node.op in LOOPS:
                return self._loop(node, inputs, condition)
            return self.evaluate_opaque(node, inputs, condition)
        if node.op == "IdentityN":
            return tuple(inputs)
        if node.op in ("Switch", "RefSwitch") and node.is_resource:
            return inputs[0]
        return None

    def call(self, function: str, inputs: Sequence[int], condition: int) -> tuple[int, ...]:
        """Evaluates a function and returns the labels of its results."""
        key = (function, tuple(inputs), condition)
        if key not in self._results:
            body = self._functions[function]
            self._results[key] = (0,) * len(body.results)  # for a function that calls itself
            arguments = dict(zip(body.arguments, inputs, strict=True))
            frame = self._evaluate_body(body, arguments, condition)
            self._results[key] = tuple(frame.at(reference) for reference in body.results)
        return self._results[key]

    def opaque_arguments(self, function: str, inputs: Sequence[int], others: int) -> list[int]:
        """Returns the labels of a function's arguments when an opaque op calls it.

        The op passes its last inputs, which it has captured, as the function's last arguments.

        Args:
            function: its name.
            inputs: labels of the op's inputs.
            others: labels of every argument that is no handle.
        """
        body = self._functions[function]
        captured = list(inputs[max(len(inputs) - len(body.arguments), 0) :])
        labels = [others] * (len(body.arguments) - len(captured)) + captured
        pairs = zip(labels, body.resources, strict=True)
        return [value if is_handle else others for value, is_handle in pairs]

    def _evaluate_body(self, body: Body, arguments: Mapping[str, int], condition: int) -> Frame:
        frame = Frame(dict(arguments), condition)
        in_order = True
        for node in body.nodes:
            if node.name not in arguments:
                in_order = in_order and all(name in frame.values for name, _ in node.inputs)
                frame.values[node.name] = self.evaluate(node, frame)
        # One pass is enough if inputs precede their consumers, but graphs of TensorFlow 1 loop.
        before = frame.values if in_order else None
        while frame.values != before:
            before = dict(frame.values)
            for node in body.nodes:
                if node.name not in arguments:
                    frame.values[node.name] = self.evaluate(node, frame)
        return frame

    def _branches(self, node: Node, inputs: list[int], condition: int) -> tuple[int, ...]:
        predicate, *operands = inputs
        predicate = self.decide(node, predicate)
        results = [self.call(name, operands, condition | predicate) for name in node.functions]
        are_handles = self._functions[node.functions[0]].result_resources
        return tuple(
            union(labels) | (0 if is_handle else predicate)
            for *labels, is_handle in zip(*results, are_handles, strict=True)
        )

    def _loop(self, node: Node, inputs: list[int], condition: int) -> tuple[int, ...]:
        test, body = node.functions
        are_handles = self._functions[body].result_resources
        state, before = tuple(inputs), None
        while state != before:
            before = state
            predicate = self.decide(node, union(self.call(test, state, condition)))
            after = self.call(body, state, condition | predicate)
            state = tuple(
                old | new | (0 if is_handle else predicate)
                for old, new, is_handle in zip(state, after, are_handles, strict=True)
            )
        return state


def union(sets: Iterable[int]) -> int:
    """Returns the union of sets of labels."""
    result = 0
    for labels in sets:
        result |= labels
    return result


def members(labels: int) -> Iterator[int]:
    """Yields the numbers of the labels in a set, ascending."""
    while labels:
        lowest = labels & -labels
        yield lowest.bit_length() - 1
        labels ^= lowest
