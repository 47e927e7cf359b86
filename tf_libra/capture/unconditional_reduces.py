"""The all-reduces that every execution of a traced graph performs unconditionally."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tf_libra.capture.dataflow.interpreter import Frame, Interpreter, union
from tf_libra.capture.dataflow.traced_graph import CALLS, Body, Node, TracedGraph


@dataclass(frozen=True)
class UnconditionalReduces:
    """The unconditional all-reduces of one execution.

    Attributes:
        times: number of all-reduces of each tensor, by name.
        has_conditional: whether the graph has other all-reduces, in a conditional or a loop.
    """

    times: Mapping[str, int]
    has_conditional: bool

    @property
    def num_tensors(self) -> int:
        """Total number of unconditional all-reduces."""
        return sum(self.times.values())


def count_unconditional_reduces(graph: TracedGraph) -> UnconditionalReduces:
    """Counts the all-reduces that no conditional or loop of the graph contains."""
    counts = _Counts(graph.functions)
    return UnconditionalReduces(counts.count(graph.body), counts.has_conditional)


class _Counts:
    def __init__(self, functions: Mapping[str, Body]) -> None:
        self.has_conditional = False
        self._functions = functions
        self._known: dict[str, Counter[str]] = {}

    def count(self, body: Body) -> Counter[str]:
        total: Counter[str] = Counter()
        conditional = _SwitchInterpreter(self._functions).run(body, {}).values
        for node in body.nodes:
            reduced = Counter(node.tensor_names)
            for function in node.functions:
                reduced += self._count_function(function)
            if not reduced:
                continue
            if conditional[node.name] or (node.functions and node.op not in CALLS):
                self.has_conditional = True
            else:
                total += reduced
        return total

    def _count_function(self, name: str) -> Counter[str]:
        if name not in self._known:
            self._known[name] = Counter()  # for a function that calls itself
            self._known[name] = self.count(self._functions[name])
        return self._known[name]


class _SwitchInterpreter(Interpreter):
    """Labels all nodes that the control flow of TensorFlow 1 may skip or repeat."""

    def evaluate(self, node: Node, frame: Frame) -> int:
        return union(frame.inputs(node)) | (node.op in ("Switch", "RefSwitch", "Enter"))
