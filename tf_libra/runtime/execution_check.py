"""Check that a step has executed the all-reduces that its graph performs unconditionally.

They are counted in the traced graph, and at their execution. A wrongly rewritten graph may silently
leave them out, so that nothing is trained.
"""

import ctypes
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tf_libra.capture.dataflow.interpreter import Frame, Interpreter, union
from tf_libra.capture.dataflow.traced_graph import CALLS, Body, Node, TracedGraph
from tf_libra.coordination.control_plane import EngineError
from tf_libra.internal import native, tf_internal


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


def start_counting(function: str) -> None:
    """Starts to count the all-reduces of a training function, given by its identity."""
    native.load().c.TfLibraTakeExecuted(function.encode(), None)


def check_executed(
    function: str, certain: UnconditionalReduces, step: int, num_steps: int = 1
) -> None:
    """Checks the all-reduces since `start_counting`; takes microseconds if none is missing.

    Args:
        function: identity of the training function.
        certain: all-reduces that must have been executed.
        step: number of the step, or of the last step in the graph, for the message.
        num_steps: number of steps in the graph.

    Raises:
        EngineError: an unconditional all-reduce was not executed.
    """
    if tf_internal.eager_context().is_async():
        tf_internal.wait_for_async_ops()
    c = native.load().c
    num_executed = c.TfLibraNumExecuted(function.encode())
    if num_executed == certain.num_tensors and not certain.has_conditional:
        return
    text = ctypes.c_char_p()
    c.TfLibraTakeExecuted(function.encode(), ctypes.byref(text))
    executed: dict[str, int] = json.loads(text.value or b"{}")
    missing = Counter(certain.times) - Counter(executed)
    if missing:
        steps = f"step {step} of {function} has"
        if num_steps > 1:
            first = step - num_steps + 1
            steps = f"steps {first} to {step} of {function}, which are one graph, have"
        raise EngineError(
            f"{steps} ended without {missing.total()} of the {certain.num_tensors} all-reduces"
            f" that the traced graph performs unconditionally (first: {next(iter(missing))!r}):"
            " TensorFlow has executed another graph, and the update is wrong. Train without plans:"
            " tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})"
        )
