"""Properties of the pass's output for random graphs and plans.

The output computes what the input did, each all-reduce once and in one order, whatever runs first;
no node waits for itself, also after TensorFlow's later merges; and no two that could be one are
apart.
"""

import itertools

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.framework import graph_pb2

from tests.drawing import fractions, num_examples, pick
from tests.passes.executor import all_reduces, computes_the_same_in_one_order, execute
from tests.passes.graphs import (
    GraphBuilder,
    Group,
    fuse_apart,
    fused,
    node_name,
    nodes,
    reasons,
    register,
    report,
    tensor_names,
)
from tests.passes.post_grappler_fusions import closes_no_cycle, siblings, whole_loops
from tests.passes.training_graphs import cases_of


@st.composite
def plans(draw: st.DrawFn, tensors: list[str]) -> list[Group]:
    """Plans of all tensors, and of one more, or of all but one."""
    names = sorted({*tensors, "missing"})
    lacks, how_many, *drawn = fractions(draw, 2 + 3 + 4 + len(names)).tolist()
    order = [names[i] for i in np.argsort(drawn[7:], kind="stable").tolist()]
    order = order[pick(range(2), lacks) :]  # the graph may have one that the plan lacks
    edges_at = range(1, max(2, len(order)))
    cuts = sorted({pick(edges_at, edge_at) for edge_at in drawn[: pick(range(4), how_many)]})
    parts = [order[a:b] for a, b in itertools.pairwise([0, *cuts, len(order)])]
    threads = [pick(range(1, 5), number) for number in drawn[3:7]]
    return [Group(*each) for each in zip(parts, threads, strict=False) if each[0]] or [
        Group(["missing"])
    ]


def dependencies(
    untouched: graph_pb2.GraphDef, rewritten: graph_pb2.GraphDef, copies: dict[str, int]
) -> nx.DiGraph:
    """Returns the dependencies, with all that became one node as one, and loops as one node each.

    Left out are the edges by which a trace puts the all-reduces of one copy of a step in order.
    """
    _, part_of = whole_loops(untouched)
    home = dict(part_of)
    for node in rewritten.node:
        for name in node.experimental_debug_info.original_node_names:
            home[name] = node.name if home[name] == name else home[name]
    by_name = nodes(untouched)
    edges = nx.DiGraph()
    edges.add_nodes_from(home.values())
    for node in untouched.node:
        for text in node.input:
            source = node_name(text)
            are_reduced = tensor_names(node) and tensor_names(by_name[source])
            copy = copies.get(home[source]), copies.get(home[node.name])
            if text.startswith("^") and are_reduced and (None in copy or copy[0] == copy[1]):
                continue
            if home[source] != home[node.name]:
                edges.add_edge(home[source], home[node.name])
    for bias, weights in siblings(untouched):
        ends = bias.name, weights.name
        if nx.has_path(edges, *ends) or nx.has_path(edges, *reversed(ends)):
            continue
        for text in (*bias.input, *weights.input):
            edges.add_edges_from((home[node_name(text)], end) for end in ends)
    return edges


@settings(max_examples=num_examples(160), deadline=None)
@given(cases_of(plans), st.integers(0, 5))
def test_random_graphs_compute_the_same_in_one_order(case, seed: int) -> None:
    graph, groups, after_backward = case
    plan = register(groups, after_backward=after_backward)
    untouched = fuse_apart(graph, register([Group(["of another model"])]))
    rewritten = fuse_apart(graph, plan)
    old, new = nodes(untouched), nodes(rewritten)

    # Nothing waits for itself, and all is there.
    assert closes_no_cycle(untouched, rewritten)
    tensors = sorted(name for node in untouched.node for name in tensor_names(node))
    assert sorted(name for node in rewritten.node for name in tensor_names(node)) == tensors
    planned = {name for group in groups for name in group.tensors}
    if not fused(rewritten):
        assert not planned & set(tensors) or reasons(plan)
        assert rewritten == untouched
        return
    ours = {name for name in new if name.startswith(f"tf_libra/{plan}/")}
    assert set(new) - set(old) == ours
    for name, node in old.items():
        if name in new and new[name].op == node.op:  # what is fetched leaves an Identity
            assert without_inputs(node) == without_inputs(new[name])
        else:
            assert tensor_names(node)

    # All runs that ran, on the same values; all-reduces once each, and in one order.
    before, runs = computes_the_same_in_one_order(untouched, rewritten, seed, num_runs=4)
    for after in runs:
        assert after.reduced == before.reduced

    # Nothing is left to do.
    assert fuse_apart(rewritten, plan) == rewritten


def without_inputs(node):
    copy = type(node)()
    copy.CopyFrom(node)
    del copy.input[:]
    return copy


@settings(max_examples=num_examples(160), deadline=None)
@given(cases_of(plans))
def test_fusable_groups_are_fused_and_neighbours_are_in_order(case) -> None:
    graph, groups, after_backward = case
    plan = register(groups, after_backward=after_backward)
    untouched = fuse_apart(graph, register([Group(["of another model"])]))
    rewritten = fuse_apart(graph, plan)
    if not fused(rewritten):
        return
    by_name = nodes(rewritten)
    written = report(plan)["graph"]["groups"]
    edges = dependencies(
        untouched, rewritten, {record["node"]: record["copy"] for record in written}
    )
    written = [record for record in written if record["node"] in edges]  # not those in loops
    for first, other in itertools.combinations(written, 2):
        if (first["group"], first["copy"]) != (other["group"], other["copy"]):
            continue
        if by_name[first["node"]].device != by_name[other["node"]].device:
            continue
        assert nx.has_path(edges, first["node"], other["node"]), (first, other)
    for first, other in itertools.pairwise(written):
        if first["copy"] == other["copy"] and first["group"] > other["group"]:
            assert nx.has_path(edges, first["node"], other["node"]), (first, other)


@st.composite
def independent(draw: st.DrawFn) -> tuple[graph_pb2.GraphDef, list[str]]:
    """Gradients of each other in any order, and all-reduces whose results nothing else needs."""
    builder = GraphBuilder()
    names = [builder.source("x")]
    tensors = [f"t{i}" for i in range(draw(st.integers(1, 8)))]
    previous: list[str] = []
    for tensor in tensors:
        some = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2))
        names.append(builder.add(f"grad_{tensor}", *some))
        builder.reduce(f"r_{tensor}", f"grad_{tensor}", *previous, tensor=tensor)
        builder.identity(f"update_{tensor}", f"r_{tensor}")
        previous = [f"^r_{tensor}"] if draw(st.booleans()) else []
    shuffled = graph_pb2.GraphDef(versions=builder.graph.versions)
    shuffled.node.extend(draw(st.permutations(builder.graph.node)))
    return shuffled, tensors


@settings(max_examples=num_examples(60), deadline=None)
@given(st.data())
def test_independent_gradients_are_the_groups_of_the_plan(data) -> None:
    graph, tensors = data.draw(independent())
    groups = data.draw(plans(tensors))
    plan = register(groups, after_backward=data.draw(st.booleans()))
    rewritten = fuse_apart(graph, plan)
    by_name = nodes(rewritten)
    runs = [name for name, _ in all_reduces(execute(rewritten, 0)) if name in fused(rewritten)]
    found = [(tensor_names(by_name[name]), by_name[name].attr["num_threads"].i) for name in runs]
    wanted = [
        ([name for name in group.tensors if name in tensors], group.num_threads) for group in groups
    ]
    assert found == [(names, threads) for names, threads in wanted if names]


@st.composite
def one_behind_the_other(draw: st.DrawFn) -> graph_pb2.GraphDef:
    """Sums and all-reduces in any order, of each tensor one."""
    builder = GraphBuilder()
    names = [builder.source("x")]
    for i in range(draw(st.integers(2, 12))):
        some = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2))
        builder.add(f"n{i}", *some)
        names.append(builder.reduce(f"r{i}", f"n{i}") if draw(st.booleans()) else f"n{i}")
    return builder.graph


@settings(max_examples=num_examples(60), deadline=None)
@given(one_behind_the_other())
def test_one_group_becomes_as_few_as_follow_each_other(graph) -> None:
    tensors = [name for node in graph.node for name in tensor_names(node)]
    plan = register([Group(tensors or ["missing"])])
    edges, _ = whole_loops(graph)
    longest: dict[str, int] = {}
    for name in nx.topological_sort(edges):
        before = max((longest[source] for source in edges.predecessors(name)), default=0)
        longest[name] = before + (name in tensors)
    # Those on one path can never be one.
    assert len(fused(fuse_apart(graph, plan))) == max(longest.values())
