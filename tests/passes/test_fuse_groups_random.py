"""The pass on random graphs and plans, against the same rules written naively."""

import itertools

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.framework import graph_pb2

from tests.passes.graphs import (
    GraphBuilder,
    Group,
    assert_acyclic,
    data,
    fuse,
    fused,
    node_name,
    nodes,
    register,
    tensor_names,
)

DEVICES = ("/device:CPU:0", "/device:CPU:1")


@st.composite
def marked_graphs(draw: st.DrawFn) -> graph_pb2.GraphDef:
    """A DAG of sums and all-reduces, in any order; some tensors are reduced more than once."""
    builder = GraphBuilder()
    names: list[str] = []
    for i in range(draw(st.integers(2, 14))):
        some = st.lists(st.sampled_from(names), max_size=2) if names else st.just([])
        inputs = [*draw(some), *(f"^{name}" for name in set(draw(some)))]
        if draw(st.booleans()) or not names:
            names.append(builder.add(f"n{i}", *inputs))
            continue
        tensor = f"t{draw(st.integers(0, 2)) if draw(st.integers(0, 5)) == 0 else i}"
        source = draw(st.sampled_from(names))
        kind = {"device": draw(st.sampled_from((*DEVICES[:1] * 3, DEVICES[1])))}
        controls_only = [name for name in inputs if name.startswith("^")]
        names.append(builder.reduce(f"n{i}", source, *controls_only, tensor=tensor, **kind))
    shuffled = graph_pb2.GraphDef(versions=builder.graph.versions)
    shuffled.node.extend(draw(st.permutations(builder.graph.node)))
    return shuffled


@st.composite
def cases(draw: st.DrawFn) -> tuple[graph_pb2.GraphDef, list[Group], bool]:
    graph = draw(marked_graphs())
    tensors = {name for node in graph.node for name in tensor_names(node)}
    order = draw(st.permutations(sorted(tensors | {"missing"})))
    order = order[draw(st.integers(0, 1)) :]  # the graph may have one that the plan lacks
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(order) - 1)), max_size=3)))
    parts = [order[a:b] for a, b in itertools.pairwise([0, *cuts, len(order)])]
    groups = [Group(part, draw(st.integers(1, 4))) for part in parts if part]
    return graph, groups or [Group(["missing"])], draw(st.booleans())


def as_networkx(graph: graph_pb2.GraphDef) -> nx.MultiDiGraph:
    edges = nx.MultiDiGraph()
    edges.add_nodes_from(node.name for node in graph.node)
    for node in graph.node:
        for text in node.input:
            edges.add_edge(node_name(text), node.name, control=text.startswith("^"))
    return edges


def longest_path(edges: nx.MultiDiGraph, name: str) -> int:
    """Number of edges on the longest path that leads to `name`."""
    return max((1 + longest_path(edges, before) for before in edges.predecessors(name)), default=0)


def is_left_out(by_name, copy: dict[str, int], start: str, end: str) -> bool:
    """Whether a control edge is how all-reduces were chained when they were traced."""
    if by_name[start].op != "LibraAllReduce" or by_name[end].op != "LibraAllReduce":
        return False
    return start not in copy or end not in copy or copy[start] == copy[end]


def expected_fusions(
    graph: graph_pb2.GraphDef, groups: list[Group]
) -> tuple[list[tuple[int, int, list[str]]], set[tuple[str, str]], dict[int, set[str]]] | None:
    """(group, copy, nodes) of each all-reduce to be, which all-reduces wait for which, and the
    gradients' producers that the all-reduces of each copy can wait for.

    None where copies cannot be told apart. The rules of fuse_groups.h, with no thought of speed.
    """
    by_name = nodes(graph)
    place = {name: k for k, group in enumerate(groups) for name in group.tensors}
    slot = {name: i for i, name in enumerate(n for group in groups for n in group.tensors)}
    tensor = {
        name: tensor_names(node)[0]
        for name, node in by_name.items()
        if node.op == "LibraAllReduce" and tensor_names(node)[0] in place
    }
    if not tensor:
        return [], set(), {}
    edges = as_networkx(graph)
    copy = {}
    for name in tensor:
        same = [other for other in tensor if tensor[other] == tensor[name] and other != name]
        before = [other for other in same if nx.has_path(edges, other, name)]
        if len(before) + sum(nx.has_path(edges, name, other) for other in same) != len(same):
            return None
        copy[name] = len(before)
    depth = {name: longest_path(edges, name) for name in by_name}
    for start, end, key, control in list(edges.edges(keys=True, data="control")):
        if control and is_left_out(by_name, copy, start, end):
            edges.remove_edge(start, end, key)
    leads = {name for name in by_name if any(nx.has_path(edges, name, other) for other in copy)}

    fusions = []
    for c, k in itertools.product(sorted(set(copy.values())), range(len(groups))):
        members = sorted((n for n in tensor if (copy[n], place[tensor[n]]) == (c, k)),
                         key=lambda n: slot[tensor[n]])  # fmt: skip
        parts: dict[tuple[int, int], list[str]] = {}
        devices = list(dict.fromkeys(by_name[name].device for name in members))
        for kind, device in enumerate(devices):
            alike = [name for name in members if by_name[name].device == device]
            reach = {(a, b) for a in alike for b in alike if a != b and nx.has_path(edges, a, b)}

            def level(name: str, reach: set[tuple[str, str]] = reach) -> int:
                return max((1 + level(a, reach) for a, b in reach if b == name), default=0)

            for name in alike:
                parts.setdefault((level(name), kind), []).append(name)
            for part in [part for key, part in parts.items() if key[1] == kind]:
                for other in part[1:]:
                    nx.contracted_nodes(edges, part[0], other, self_loops=False, copy=False)
        fusions += [(k, c, part) for _, part in sorted(parts.items())]
    assert nx.is_directed_acyclic_graph(edges)

    staying = [n for n in by_name if by_name[n].op == "LibraAllReduce" and n not in copy]
    staying.sort(key=lambda name: (name not in leads, depth[name], name))
    wanted = []
    for _, _, part in fusions:
        while staying and staying[0] in leads and depth[staying[0]] < max(map(depth.get, part)):
            wanted.append(staying.pop(0))
        wanted.append(part[0])
    rank = {name: i for i, name in enumerate([*wanted, *staying])}
    order = nx.lexicographical_topological_sort(edges, lambda name: (rank.get(name, -1), name))
    waits = set(itertools.pairwise(name for name in order if name in rank))
    edges.add_edges_from(waits)

    whole = {name: part[0] for _, _, part in fusions for name in part}
    producers = {}
    for c in sorted(set(copy.values())):
        ours = {part[0] for _, d, part in fusions if d == c}
        sources = {data(by_name[name])[0] for _, d, part in fusions if d == c for name in part}
        producers[c] = {
            source
            for source in sources
            if not any(nx.has_path(edges, node, whole.get(source, source)) for node in ours)
        }
        edges.add_edges_from((whole.get(source, source), ("barrier", c)) for source in producers[c])
        if producers[c]:
            edges.add_edges_from((("barrier", c), node) for node in ours)
    assert nx.is_directed_acyclic_graph(edges)
    return fusions, waits, producers


def value(graph: graph_pb2.GraphDef) -> dict[str, object]:
    """What each data input of each node is computed from, all-reduces seen one by one."""
    by_name = nodes(graph)

    def evaluate(text: str) -> object:
        name, _, port = text.partition(":")
        node = by_name[name]
        if node.op == "LibraAllReduce":
            i = int(port or 0)
            return ("reduced", tensor_names(node)[i], node.device, evaluate(data(node)[i]))
        if node.op == "Identity":
            return evaluate(data(node)[0])
        return (node.op, name, tuple(evaluate(source) for source in data(node)))

    return {node.name: [evaluate(source) for source in data(node)] for node in graph.node}


@settings(max_examples=150, deadline=None)
@given(cases())
def test_random_graphs_are_fused_as_far_as_the_rules_allow(case) -> None:
    graph, groups, after_backward = case
    plan = register(groups, after_backward=after_backward)
    untouched = fuse(graph, register([Group(["of another model"])]))
    rewritten = fuse(graph, plan)
    assert_acyclic(rewritten)
    old, new = nodes(untouched), nodes(rewritten)

    expected = expected_fusions(graph, groups)
    if expected is None:
        assert rewritten == untouched
        return
    fusions, waits, producers = expected
    tensor = {name: tensor_names(node)[0] for name, node in old.items() if tensor_names(node)}

    # The all-reduces that were to be written are there, and each waits for those it is to wait for.
    written = {}
    for node in rewritten.node:
        if node.name in fused(rewritten):
            sources = tuple(zip(tensor_names(node), data(node), strict=True))
            written[node.attr["group"].i, tuple(t for t, _ in sources), node.name] = node
    names = []
    for k, c, members in fusions:
        suffix = f"_copy_{c}" if c else ""
        part = sum(1 for fusion in fusions[: len(names)] if fusion[:2] == (k, c))
        suffix += f"_part_{part}" if part else ""
        names.append(f"tf_libra/{plan}/group_{k}{suffix}")
        node = written.pop((k, tuple(tensor[name] for name in members), names[-1]))
        assert node.attr["num_threads"].i == groups[k].num_threads
        assert node.device == old[members[0]].device
    assert not written
    home = {name: names[i] for i, fusion in enumerate(fusions) for name in fusion[2]}
    copies = {name: fusion[1] for fusion in fusions for name in fusion[2]}

    # Every edge is where it was, or where its ends moved to, but for those within a step's chain.
    def moved(text: str) -> str:
        prefix = "^" if text.startswith("^") else ""
        return prefix + home.get(node_name(text), node_name(text))

    added = {(f"^{home.get(before, before)}", home.get(after, after)) for before, after in waits}
    kept = {
        (moved(text), home.get(node.name, node.name))
        for node in untouched.node
        for text in node.input
        if not (text.startswith("^") and is_left_out(old, copies, node_name(text), node.name))
    }
    barriers = {
        f"tf_libra/{plan}/after_backward{f'_copy_{c}' if c else ''}": c
        for c in producers
        if producers[c] and after_backward
    }
    expected_edges = kept | added | {(home[name], name) for name in new if name in home}
    for name, c in barriers.items():
        expected_edges |= {(moved(f"^{source}"), name) for source in producers[c]}
        expected_edges |= {(f"^{name}", home[m]) for _, d, part in fusions if d == c for m in part}
    found = {
        (("^" if text.startswith("^") else "") + node_name(text), node.name)
        for node in rewritten.node
        for text in node.input
    }
    assert found >= expected_edges
    # What orders backward computation is control edges: test_backward_order.py asks what they do.
    assert all(source.startswith("^") for source, _ in found - expected_edges)

    # Every node that is not ours is as it was, and sees the same tensors.
    old_values, new_values = value(untouched), value(rewritten)
    for name, node in old.items():
        if name in home:
            continue
        assert new_values[name] == old_values[name]
        left, right = (type(node)(), type(node)())
        left.CopyFrom(node)
        right.CopyFrom(new[name])
        del left.input[:], right.input[:]
        assert left == right
    joins = {name for name in new if name.startswith(f"tf_libra/{plan}/produced_")}
    assert {new[name].op for name in joins} <= {"NoOp"}
    assert set(new) - set(old) == set(names) | set(barriers) | joins

    # Nothing is left to do.
    assert fuse(rewritten, plan) == rewritten
