"""A model of TensorFlow's executor: which nodes of a GraphDef run, in which order.

Ready nodes run in an order that the caller chooses, so one graph can be run in its worst order.
Dead tensors, frames and iterations are kept as `tensorflow/core/common_runtime/executor.cc` keeps
them, for loops that are not nested and that no untaken branch leads to. Values are symbols: two are
equal if the same was computed of the same.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

from tensorflow.core.framework import graph_pb2

from tests.passes.graphs import node_name, nodes, tensor_names

# Where a node runs: the frame's name ("" outside of loops) and the iteration.
Place = tuple[str, int]
Run = tuple[str, Place]
# Ops that forward one of their inputs.
HAND_ON = ("Identity", "Enter", "Exit", "NextIteration", "Switch")


class Execution:
    """One execution of `graph`.

    Args:
        graph: what to execute.
        taken: whether the Switches that read this predicate (a node's name) take their branch 1.
        trips: how often each loop (a frame's name) goes round.

    Attributes:
        nodes: of the graph, by name.
        ran: what has run, in order.
        values: what each run of a node got to compute with.
        reduced: how often each tensor was all-reduced of each value.
    """

    def __init__(
        self, graph: graph_pb2.GraphDef, taken: Mapping[str, bool], trips: Mapping[str, int]
    ) -> None:
        self.nodes = nodes(graph)
        self._taken = taken
        self._trips = trips
        self._consumers: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
        for node in graph.node:
            for slot, text in enumerate(node.input):
                self._consumers[node_name(text)].append((node.name, slot, text))
        self._arrived: dict[Run, dict[int, bool]] = defaultdict(dict)  # slot -> whether alive
        self._inputs: dict[Run, dict[int, int]] = defaultdict(dict)  # slot -> value
        self._outputs: dict[Run, list[int]] = {}
        self._done: set[Run] = set()
        self._constants: dict[str, list[tuple[Run, bool]]] = defaultdict(list)  # of loops
        self._iterations: dict[str, int] = defaultdict(int)
        self.ran: list[Run] = []
        self.values: dict[Run, tuple[int, ...]] = {}
        self.reduced: Counter[tuple[str, int]] = Counter()

    def run(self, choose: Callable[[list[str]], int]) -> list[Run]:
        """Executes all there is; `choose` picks the next of the nodes that are ready."""
        self._ready: list[tuple[Run, bool]] = []
        for name, node in self.nodes.items():
            if not node.input:
                self._start((name, ("", 0)), alive=True)
        while self._ready:
            index = choose([run[0] for run, _ in self._ready])
            run, alive = self._ready.pop(index)
            if alive:
                self.ran.append(run)
                self._compute(run)
            self._finish(run, alive)
        return self.ran

    def _compute(self, run: Run) -> None:
        node = self.nodes[run[0]]
        got = self._inputs[run]  # as they came
        slots = [i for i, text in enumerate(node.input) if not text.startswith("^")]
        if node.op == "Merge":
            self.values[run] = (next(got[i] for i in got if i in slots),)
        else:
            self.values[run] = tuple(got[i] for i in slots)
        if node.op in (*HAND_ON, "Merge"):
            self._outputs[run] = [self.values[run][0]] * 2
        elif node.op in ("LibraAllReduce", "LibraAllReduceStart"):
            reduced = list(zip(tensor_names(node), self.values[run], strict=True))
            self.reduced.update(reduced)
            self._outputs[run] = [hash(("reduced", *values)) for values in reduced]
            if node.op == "LibraAllReduceStart":
                self._outputs[run].append(hash(run))  # what is pending
        elif node.op == "LibraCut":
            whole = self.values[run][0]
            starts = range(node.attr["K"].i)
            self._outputs[run] = [whole, *(hash(("part", whole, i)) for i in starts)]
        elif node.op == "LibraJoin":
            self._outputs[run] = [self._joined(node, *self.values[run])]
        elif node.op == "LibraAllReduceWait":
            self._outputs[run] = list(self.values[run][:-1])
        else:
            self._outputs[run] = [hash((node.op, node.name, self.values[run]))] * 2

    def _joined(self, node, whole: int, *parts: int) -> int:
        """Returns the all-reduce of the whole, if these are all of its parts, all-reduced."""
        for reader in self.nodes.values():
            for slot, text in enumerate(reader.input):
                if tensor_names(reader) and text.partition(":")[0] == node_name(node.input[0]):
                    tensor = tensor_names(reader)[slot]
        reduced = [hash(("reduced", tensor, hash(("part", whole, i)))) for i in range(len(parts))]
        assert list(parts) == reduced, node.name
        return hash(("reduced", tensor, whole))

    def _start(self, run: Run, alive: bool) -> None:
        if run not in self._done:
            self._done.add(run)
            self._ready.append((run, alive))

    def _finish(self, run: Run, alive: bool) -> None:
        name, (frame, iteration) = run
        node = self.nodes[name]
        place = (frame, iteration)
        if node.op == "Enter":
            place = (node.attr["frame_name"].s.decode(), 0)
            if node.attr["is_constant"].b:
                for i in range(self._iterations[place[0]] + 1):
                    self._send(run, alive, (place[0], i))
                self._constants[place[0]].append((run, alive))
                return
        elif node.op == "Exit":
            if not alive:  # the executor drops those while the loop goes on
                return
            place = ("", 0)
        elif node.op == "NextIteration":
            if not alive:
                return
            place = (frame, iteration + 1)
            if iteration + 1 > self._iterations[frame]:
                self._iterations[frame] = iteration + 1
                for constant, is_alive in self._constants[frame]:
                    self._send(constant, is_alive, place)
        self._send(run, alive, place, switched=self._branch(node, frame, iteration))

    def _branch(self, node, frame: str, iteration: int) -> int | None:
        if node.op != "Switch":
            return None
        predicate = node_name(node.input[1])
        if self.nodes[predicate].op == "LoopCond":
            return int(iteration < self._trips[frame])
        return int(self._taken[predicate])

    def _send(self, run: Run, alive: bool, place: Place, switched: int | None = None) -> None:
        for consumer, slot, text in self._consumers[run[0]]:
            arrives = alive
            if not text.startswith("^"):
                port = int(text.partition(":")[2] or 0)
                arrives = alive and switched in (None, port)
                if arrives:
                    self._inputs[consumer, place][slot] = self._outputs[run][port]
            self._arrive((consumer, place), slot, arrives)

    def _arrive(self, run: Run, slot: int, alive: bool) -> None:
        node = self.nodes[run[0]]
        arrived = self._arrived[run]
        arrived[slot] = alive
        data = [i for i, text in enumerate(node.input) if not text.startswith("^")]
        if node.op != "Merge":
            if len(arrived) == len(node.input):
                self._start(run, all(arrived.values()))
            return
        if any(i not in arrived for i in range(len(node.input)) if i not in data):
            return
        if any(arrived.get(i) for i in data):
            self._start(run, True)
        elif all(i in arrived for i in data):
            self._start(run, False)


def execute(
    graph: graph_pb2.GraphDef, seed: int, worst: Mapping[str, int] | None = None, dice: int = 0
) -> Execution:
    """Runs in random order, or what has the highest number in `worst` first.

    Args:
        graph: what to execute.
        seed: which branches are taken, and how often loops go round.
        worst: by node.
        dice: another random order.
    """
    random_choice = random.Random(dice)

    def choose(ready: list[str]) -> int:
        if worst is None:
            return random_choice.randrange(len(ready))
        return max(range(len(ready)), key=lambda i: worst.get(ready[i], 0))

    taken = {node.name: (len(node.name) + seed) % 2 == 1 for node in graph.node}
    trips = {node.name.partition("/")[0]: seed % 3 for node in graph.node if node.op == "LoopCond"}
    execution = Execution(graph, taken, trips)
    execution.run(choose)
    return execution


def all_reduces(execution: Execution) -> list[tuple[str, tuple[str, int]]]:
    """Returns the all-reduces that have run, in order."""
    return [run for run in execution.ran if tensor_names(execution.nodes[run[0]])]


def computes_the_same_in_one_order(
    untouched: graph_pb2.GraphDef, rewritten: graph_pb2.GraphDef, seed: int, num_runs: int
) -> tuple[Execution, list[Execution]]:
    """Asserts that all that ran runs, on the same values, and all-reduces in one order.

    In some orders, and in the one that is against the first as far as that may be.

    Returns:
        The run of the graph as it was, and those of the rewritten one.
    """
    old, new = nodes(untouched), nodes(rewritten)
    before = execute(untouched, seed)
    runs = [execute(rewritten, seed, dice=dice) for dice in range(num_runs)]
    backwards = {run[0]: i for i, run in enumerate(runs[0].ran)}
    runs.append(execute(rewritten, seed, worst=backwards))
    for after in runs:
        assert {run for run in before.ran if run[0] in new} <= set(after.ran)
        for run, values in before.values.items():
            if run[0] in new and not tensor_names(old[run[0]]):
                assert after.values[run] == values
        assert all_reduces(after) == all_reduces(runs[0])
    return before, runs
