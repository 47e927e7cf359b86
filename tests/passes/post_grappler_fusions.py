"""The ops that TensorFlow merges after Grappler, and the liveness of a graph after that."""

import itertools

import networkx as nx
from tensorflow.core.framework import graph_pb2

from tests.passes.graphs import controls, data, node_name, nodes

# What may become one op with its only reader.
MERGED = ("AddN", "Cast", "BiasAddGrad", "Conv2DBackpropFilter")


def whole_loops(graph: graph_pb2.GraphDef) -> tuple[nx.DiGraph, dict[str, str]]:
    """The graph with each loop as one node, and what each node is part of."""
    part_of = {node.name: node.name for node in graph.node}
    loops = [node.name.removesuffix("/while") for node in graph.node if node.op == "LoopCond"]
    for name, loop in itertools.product(part_of, loops):
        if name.startswith(f"{loop}/") and not name.endswith("/count"):
            part_of[name] = loop
    # What the pass writes in a loop has another name.
    leaves = {node.name for node in graph.node if node.op == "Exit"}
    for node in [node for node in graph.node if node.name.startswith("tf_libra/")] * 2:
        sources = {node_name(text) for text in node.input} - leaves
        part_of[node.name] = next(
            (part_of[name] for name in sources if part_of[name] in loops), node.name
        )
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
    """Returns whether no node waits for itself once the nodes of each pair are one."""
    groups = nx.utils.UnionFind(edges)
    for a, b in pairs:
        groups.union(part_of[a], part_of[b])
    merged = nx.DiGraph()
    merged.add_edges_from((groups[a], groups[b]) for a, b in edges.edges if groups[a] != groups[b])
    return nx.is_directed_acyclic_graph(merged)


def closes_no_cycle(untouched: graph_pb2.GraphDef, rewritten: graph_pb2.GraphDef) -> bool:
    """Returns whether `rewritten` stays live, whatever pairs of `untouched` could be merged."""
    original, original_part_of = whole_loops(untouched)
    edges, part_of = whole_loops(rewritten)
    merged, chained = merged_later(rewritten), chained_later(rewritten)
    # A node becomes one with its sibling or with its reader, not with both.
    taken = set(itertools.chain(*merged))
    others = [pair for pair in chained if not taken & set(pair)]
    # Where not all can be merged together, which are is TensorFlow's choice.
    all_pairs = [(bias.name, weights.name) for bias, weights in siblings(untouched)]
    if not is_live_after(original, original_part_of, all_pairs):
        return is_live_after(edges, part_of, [])
    return is_live_after(edges, part_of, []) and all(
        is_live_after(edges, part_of, pairs) or not is_live_after(original, original_part_of, pairs)
        for pairs in (merged, chained, merged + others)
    )
