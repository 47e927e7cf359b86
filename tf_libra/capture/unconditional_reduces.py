"""The tensors that every execution of a trace is certain to all-reduce."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tf_libra.capture.dataflow.interpreter import Frame, Interpreter, union
from tf_libra.capture.dataflow.traced_graph import CALLS, Body, Node, TracedGraph


@dataclass(frozen=True)
class UnconditionalReduces:
    """The all-reduces of one execution.

    Attributes:
        times: how often each tensor is all-reduced, whatever the data are; by name.
        perhaps_others: whether there are others, under a condition or in a loop of the graph.
    """

    times: Mapping[str, int]
    has_conditional: bool

    @property
    def num_tensors(self) -> int:
        """The number of tensors that are certain, each as often as it is reduced."""
        return sum(self.times.values())


def count_unconditional_reduces(graph: TracedGraph) -> UnconditionalReduces:
    """Counts the all-reduces that nothing in the graph makes conditional."""
    counts = _Counts(graph.functions)
    return UnconditionalReduces(counts.of(graph.body), counts.has_conditional)


class _Counts:
    def __init__(self, functions: Mapping[str, Body]) -> None:
        self.has_conditional = False
        self._functions = functions
        self._known: dict[str, Counter[str]] = {}

    def of(self, body: Body) -> Counter[str]:
        found: Counter[str] = Counter()
        conditional = _SwitchInterpreter(self._functions).run(body, {}).values
        for node in body.nodes:
            reduced = Counter(node.tensor_names)
            for function in node.functions:
                reduced += self._of_function(function)
            if not reduced:
                continue
            if conditional[node.name] or (node.functions and node.op not in CALLS):
                self.has_conditional = True
            else:
                found += reduced
        return found

    def _of_function(self, name: str) -> Counter[str]:
        if name not in self._known:
            self._known[name] = Counter()  # of a function that calls itself
            self._known[name] = self.of(self._functions[name])
        return self._known[name]


class _SwitchInterpreter(Interpreter):
    """Labels all that the control flow of TensorFlow 1 may skip, or repeat."""

    def evaluate(self, node: Node, frame: Frame) -> int:
        return union(frame.inputs(node)) | (node.op in ("Switch", "RefSwitch", "Enter"))
