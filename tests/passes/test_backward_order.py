"""What the order of backward computation does: all still runs, and groups complete one by one."""

import itertools
import random

import networkx as nx
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.framework import graph_pb2

from tests.passes.executor import Execution
from tests.passes.graphs import (
    GraphBuilder,
    Group,
    controls,
    data,
    fuse,
    node_name,
    nodes,
    register,
    report,
    tensor_names,
)

FLOAT = tf.float32.as_datatype_enum
BOTH = ("/device:CPU:0", "/device:CPU:1")
# What may become one op with its only reader.
MERGED = ("AddN", "Cast", "BiasAddGrad", "Conv2DBackpropFilter")


class TrainingGraph(GraphBuilder):
    """Adds whole pieces of real graphs, in the ops that TensorFlow writes them in."""

    def op(self, op: str, name: str, *inputs: str, device: str = "") -> str:
        self.node(op, name, inputs, device).attr["T"].type = FLOAT
        return name

    def cast(self, name: str, source: str) -> str:
        node = self.node("Cast", name, [source])
        node.attr["SrcT"].type = node.attr["DstT"].type = FLOAT
        return name

    def convolution(self, name: str, gradient: str, activation: str) -> tuple[str, str]:
        """The gradients of a convolution's bias and filter, from the gradient of its output."""
        bias = self.op("BiasAddGrad", f"{name}/bias", gradient)
        self.source(f"{name}/shape", f"^{gradient}", dtype=tf.int32)
        self.op("Conv2DBackpropFilter", f"{name}/filter", activation, f"{name}/shape", gradient)
        strides = self.graph.node[-1].attr["strides"].list.i
        strides.extend([1, 1, 1, 1])
        self.graph.node[-1].attr["padding"].s = b"SAME"
        return bias, f"{name}/filter"

    def conditional(self, name: str, source: str) -> str:
        predicate = self.node("Const", f"{name}/if").name
        self.graph.node[-1].attr["dtype"].type = tf.bool.as_datatype_enum
        self.graph.node[-1].attr["value"].tensor.CopyFrom(tf.make_tensor_proto(False))
        self.op("Switch", f"{name}/switch", source, predicate)
        self.add(f"{name}/else", f"{name}/switch")
        self.add(f"{name}/then", f"{name}/switch:1")
        self.op("Merge", f"{name}/merge", f"{name}/else", f"{name}/then")
        self.graph.node[-1].attr["N"].i = 2
        return f"{name}/merge"

    def loop(self, name: str, *sources: str) -> list[str]:
        """A while loop whose every value is made of all that it takes, and what it puts out."""

        def enter(source: str, to: str, is_constant: bool = False) -> str:
            self.op("Enter", to, source)
            self.graph.node[-1].attr["frame_name"].s = name.encode()
            self.graph.node[-1].attr["is_constant"].b = is_constant
            return to

        sources = (self.source(f"{name}/count"), *sources)
        for i, source in enumerate(sources):
            enter(source, f"{name}/enter{i}")
            self.op("Merge", f"{name}/merge{i}", f"{name}/enter{i}", f"{name}/next{i}")
            self.graph.node[-1].attr["N"].i = 2
        enter(sources[-1], f"{name}/constant", is_constant=True)
        self.source(f"{name}/limit", f"^{name}/merge0")
        self.op("Less", f"{name}/less", f"{name}/merge0", f"{name}/limit")
        self.node("LoopCond", f"{name}/while", [f"{name}/less"])
        for i, _ in enumerate(sources):
            self.op("Switch", f"{name}/switch{i}", f"{name}/merge{i}", f"{name}/while")
        for i, _ in enumerate(sources):
            others = [f"{name}/switch{j}:1" for j in range(len(sources)) if i]
            self.add(f"{name}/body{i}", f"{name}/switch{i}:1", *others, f"{name}/constant")
            self.op("NextIteration", f"{name}/next{i}", f"{name}/body{i}")
            self.op("Exit", f"{name}/exit{i}", f"{name}/switch{i}")
        return [f"{name}/exit{i}" for i, _ in enumerate(sources) if i]


@st.composite
def training_graphs(draw: st.DrawFn, several_devices: bool = False) -> graph_pb2.GraphDef:
    """Pieces of graphs in any order, of which some gradients are all-reduced."""
    builder = TrainingGraph()
    builder.source("dims", dtype=tf.int32)
    builder.node("RandomUniform", "x", ["dims"]).attr["dtype"].type = FLOAT
    builder.graph.node[-1].attr["T"].type = tf.int32.as_datatype_enum
    values = ["x"]
    kinds = ("add", "add", "add", "const", "cast", "convolution", "if", "loop", "reduced")
    for i in range(draw(st.integers(2, 12))):
        kind = draw(st.sampled_from(kinds))
        one = st.sampled_from(values)
        name = f"n{i}"
        gradients: list[str] = []
        if kind == "add":
            some = draw(st.lists(one, min_size=1, max_size=3))
            gradients = [builder.add(name, *some, *(f"^{v}" for v in {draw(one)} - set(some)))]
            if several_devices:
                builder.graph.node[-1].device = draw(st.sampled_from(BOTH))
        elif kind == "const":
            gradients = [builder.source(name, f"^{draw(one)}")]
        elif kind == "cast":
            gradients = [builder.cast(name, draw(one))]
        elif kind == "convolution":
            gradients = list(builder.convolution(name, draw(one), draw(one)))
        elif kind == "if":
            gradients = [builder.conditional(name, draw(one))]
        elif kind == "loop":
            gradients = builder.loop(name, *draw(st.lists(st.sampled_from(values), min_size=1,
                                                          max_size=2)))  # fmt: skip
        else:
            reduced = [node.name for node in builder.graph.node if node.op == "LibraAllReduce"]
            if reduced:
                values.append(builder.add(name, draw(st.sampled_from(reduced))))
            continue
        values += gradients
        for gradient in gradients:
            if draw(st.integers(0, 2)):
                builder.reduce(f"r{gradient}", gradient)
                builder.identity(f"update/{gradient}", f"r{gradient}")
    shuffled = graph_pb2.GraphDef(versions=builder.graph.versions)
    shuffled.node.extend(draw(st.permutations(builder.graph.node)))
    return shuffled


@st.composite
def cases(draw: st.DrawFn) -> tuple[graph_pb2.GraphDef, list[Group], bool]:
    graph = draw(training_graphs(several_devices=draw(st.booleans())))
    tensors = sorted(name for node in graph.node for name in tensor_names(node)) or ["none"]
    order = draw(st.permutations(tensors)) if draw(st.booleans()) else tensors[::-1]
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(order) - 1)), max_size=4)))
    parts = [order[a:b] for a, b in itertools.pairwise([0, *cuts, len(order)])]
    return graph, [Group(part) for part in parts if part], draw(st.booleans())


def whole_loops(graph: graph_pb2.GraphDef) -> tuple[nx.DiGraph, dict[str, str]]:
    """The graph with each loop as one node, and what each node is part of."""
    part_of = {node.name: node.name for node in graph.node}
    loops = [node.name.removesuffix("/while") for node in graph.node if node.op == "LoopCond"]
    for name, loop in itertools.product(part_of, loops):
        if name.startswith(f"{loop}/") and not name.endswith("/count"):
            part_of[name] = loop
    edges = nx.DiGraph()
    edges.add_nodes_from(part_of.values())
    for node in graph.node:
        for text in node.input:
            ends = part_of[node_name(text)], part_of[node.name]
            if ends[0] != ends[1]:
                edges.add_edge(*ends)
    return edges, part_of


def siblings(graph: graph_pb2.GraphDef) -> list[tuple]:
    """The gradients of a bias and of a filter that read one gradient."""
    ops = {op: [n for n in graph.node if n.op == op] for op in {node.op for node in graph.node}}
    pairs = itertools.product(ops.get("BiasAddGrad", []), ops.get("Conv2DBackpropFilter", []))
    return [(bias, weights) for bias, weights in pairs if data(bias)[0] == data(weights)[2]]


def merged_later(graph: graph_pb2.GraphDef) -> list[tuple[str, str]]:
    """Pairs that oneDNN's layout pass makes one op of: they read one gradient, and wait alike."""
    pairs: list[tuple[str, str]] = []
    for bias, weights in siblings(graph):
        # Each becomes one op with one other.
        if {bias.name, weights.name} & set(itertools.chain(*pairs)):
            continue
        if set(controls(bias)) == set(controls(weights)):
            pairs.append((bias.name, weights.name))
    return pairs


def chained_later(graph: graph_pb2.GraphDef) -> list[tuple[str, str]]:
    """A node and its only reader, which wait alike: remapping may make one op of them."""
    readers: dict[str, set[str]] = {}
    for node in graph.node:
        for source in data(node):
            readers.setdefault(node_name(source), set()).add(node.name)
    by_name = nodes(graph)

    return [
        (name, reader)
        for name, (reader, *others) in ((n, sorted(r)) for n, r in readers.items())
        if not others and by_name[name].op in MERGED and by_name[reader].op in MERGED
        if set(controls(by_name[name])) == set(controls(by_name[reader]))
    ]


def is_live_after(edges: nx.DiGraph, part_of: dict[str, str], pairs: list[tuple[str, str]]) -> bool:
    """Whether no node waits for itself once the nodes of each pair are one."""
    groups = nx.utils.UnionFind(edges)
    for a, b in pairs:
        groups.union(part_of[a], part_of[b])
    merged = nx.DiGraph()
    merged.add_edges_from((groups[a], groups[b]) for a, b in edges.edges if groups[a] != groups[b])
    return nx.is_directed_acyclic_graph(merged)


def execute(
    graph: graph_pb2.GraphDef, seed: int, worst: dict[str, int] | None = None
) -> list[tuple[str, tuple[str, int]]]:
    """Runs in random order, or what has the highest number in `worst` first."""
    dice = random.Random(seed)

    def choose(ready: list[str]) -> int:
        if worst is None:
            return dice.randrange(len(ready))
        return max(range(len(ready)), key=lambda i: worst.get(ready[i], 0))

    taken = {node.name: (len(node.name) + seed) % 2 == 1 for node in graph.node}
    trips = {node.name.partition("/")[0]: seed % 3 for node in graph.node if node.op == "LoopCond"}
    return Execution(graph, taken, trips).run(choose)


def without_order(untouched: graph_pb2.GraphDef, rewritten: graph_pb2.GraphDef) -> nx.DiGraph:
    """What depends on what where backward computation is not ordered, in `rewritten`'s names."""
    old, new = nodes(untouched), nodes(rewritten)
    edges, part_of = whole_loops(rewritten)
    for name, node in old.items():
        if name not in new:
            continue
        for source in set(controls(new[name])) - set(controls(node)):
            if new[source].op != "LibraAllReduce" and edges.has_edge(source, part_of[name]):
                edges.remove_edge(source, part_of[name])
    return edges


def constants(graph: graph_pb2.GraphDef) -> set[str]:
    """What needs no computation: constants, and what follows from them."""
    known = {node.name for node in graph.node if node.op == "Const"}
    while True:
        more = {
            node.name
            for node in graph.node
            if node.op in ("Less", *MERGED) and {node_name(n) for n in data(node)} <= known
        } - known
        if not more:
            return known
        known |= more


def produced(plan: str, one_by_one: bool) -> list[list[str]]:
    """Producers of the gradients of each group that was written."""
    if "graph" not in report(plan):
        return []
    groups: dict[int, list[str]] = {}
    for group in report(plan)["graph"]["groups"]:
        names = [tensor["producer"] for tensor in group["tensors"]]
        groups.setdefault(group["group"], []).extend(names)
    return [[name] for g in groups.values() for name in g] if one_by_one else list(groups.values())


@settings(max_examples=80, deadline=None)
@given(cases(), st.integers(0, 5))
def test_all_that_ran_still_runs_and_groups_come_one_by_one(case, seed: int) -> None:
    graph, groups, after_backward = case
    plan = register(groups, after_backward=after_backward)
    untouched = fuse(graph, register([Group(["of another model"])]))
    rewritten = fuse(graph, plan)
    order = produced(plan, after_backward)
    unordered = without_order(untouched, rewritten)
    # The gradients of a convolution's bias and filter may become one op: then one needs the other.
    native = unordered.copy()
    for bias, weights in siblings(rewritten):
        native.add_edges_from([(bias.name, weights.name), (weights.name, bias.name)])
    _, part_of = whole_loops(rewritten)

    # What has to come one after the other: gradients of different groups, but for those that an
    # earlier group needs, and those that need no computation.
    pairs = []
    needed: set[str] = set()
    for k, earlier in enumerate(order):
        for name in earlier:
            needed |= {part_of[name]} | nx.ancestors(native, part_of[name])
        later = {name for group in order[k + 1 :] for name in group if part_of[name] not in needed}
        pairs += itertools.product(set(earlier) - constants(graph), later - constants(graph))

    # The worst is to run first what no group needs, and then what only the last one does.
    worst = dict.fromkeys(nodes(rewritten), len(order))
    for k, group in reversed(list(enumerate(order))):
        for name in group:
            parts = {part_of[name]} | nx.ancestors(native, part_of[name])
            worst.update((node, k) for node, part in part_of.items() if part in parts)

    old, new = nodes(untouched), nodes(rewritten)
    before = {run for run in execute(untouched, seed) if run[0] in new}
    for policy in (None, worst):
        ran = execute(rewritten, seed, policy)
        assert before <= set(ran)
        position = {name: i for i, (name, _) in reversed(list(enumerate(ran)))}
        assert set(new) - set(old) <= set(position)
        if len({node.device for node in graph.node}) > 1:
            continue  # no edge leads from one device to another
        for first, second in pairs:
            assert position[first] < position[second], (first, second)

    ordered, _ = whole_loops(rewritten)
    assert is_live_after(ordered, part_of, [])
    for pairs in (merged_later(rewritten), merged_later(rewritten) + chained_later(rewritten)):
        assert is_live_after(ordered, part_of, pairs) or not is_live_after(
            unordered, part_of, pairs
        )
