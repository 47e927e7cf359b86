"""The effect of the backward order: all still runs, and groups complete one by one."""

import itertools

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.framework import graph_pb2

from tests.drawing import num_examples
from tests.passes.executor import execute
from tests.passes.graphs import (
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
from tests.passes.post_grappler_fusions import MERGED, closes_no_cycle, siblings, whole_loops
from tests.passes.training_graphs import training_graphs


@st.composite
def cases(draw: st.DrawFn) -> tuple[graph_pb2.GraphDef, list[Group], bool]:
    graph = draw(training_graphs(several_devices=draw(st.booleans())))
    tensors = sorted(name for node in graph.node for name in tensor_names(node)) or ["none"]
    order = draw(st.permutations(tensors)) if draw(st.booleans()) else tensors[::-1]
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(order) - 1)), max_size=4)))
    parts = [order[a:b] for a, b in itertools.pairwise([0, *cuts, len(order)])]
    return graph, [Group(part) for part in parts if part], draw(st.booleans())


def without_order(untouched: graph_pb2.GraphDef, rewritten: graph_pb2.GraphDef) -> nx.DiGraph:
    """Returns the dependencies without those of the backward order, in `rewritten`'s names."""
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
    """Returns the nodes that need no computation: constants, and those computed from them."""
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
    """Producers of the gradients of each group, as they run: a part that has to wait for a later
    group comes behind that.
    """
    if "graph" not in report(plan):
        return []
    groups = [
        [tensor["producer"] for group in part for tensor in group["tensors"]]
        for _, part in itertools.groupby(
            report(plan)["graph"]["groups"], key=lambda group: group["group"]
        )
    ]
    return [[name] for group in groups for name in group] if one_by_one else groups


@settings(max_examples=num_examples(80), deadline=None)
@given(cases(), st.integers(0, 5))
def test_all_that_ran_still_runs_and_groups_come_one_by_one(case, seed: int) -> None:
    graph, groups, after_backward = case
    plan = register(groups, after_backward=after_backward)
    untouched = fuse(graph, register([Group(["of another model"])]))
    rewritten = fuse(graph, plan)
    order = produced(plan, after_backward)
    # The gradients of a convolution's bias and filter may become one op: then one needs the other.
    native = without_order(untouched, rewritten)
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
    before = {run for run in execute(untouched, seed).ran if run[0] in new}
    for policy in (None, worst):
        ran = execute(rewritten, seed, policy).ran
        assert before <= set(ran)
        position = {name: i for i, (name, _) in reversed(list(enumerate(ran)))}
        assert set(new) - set(old) <= set(position)
        if len({node.device for node in graph.node}) > 1:
            continue  # no edge leads from one device to another
        for first, second in pairs:
            assert position[first] < position[second], (first, second)
    assert closes_no_cycle(untouched, rewritten)
