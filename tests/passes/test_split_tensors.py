"""The pass's rewrite of plans that have tensors in parts."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import num_examples
from tests.passes.executor import computes_the_same_in_one_order
from tests.passes.graphs import (
    GraphBuilder,
    Group,
    assert_acyclic,
    config,
    fuse_apart,
    fused,
    node_name,
    nodes,
    optimize,
    reasons,
    register,
    report,
)
from tests.passes.training_graphs import cases_of


@st.composite
def plans(draw: st.DrawFn, tensors: list[str]) -> list[Group]:
    """All tensors in some order, some of them in parts, in groups between any two places."""
    edges_at = []  # what a plan is made of, in its order
    for tensor in draw(st.permutations(sorted({*tensors} or {"missing"}))):
        parts = draw(st.integers(1, 4))
        edges_at += [(tensor, 4 * i if parts > 1 else -1) for i in range(parts)]
    # Two parts of one tensor are never in one group.
    must = {i for i in range(1, len(edges_at)) if edges_at[i][0] == edges_at[i - 1][0]}
    may = draw(st.sets(st.integers(1, max(1, len(edges_at) - 1)), max_size=4))
    edges = [0, *sorted(must | {edge for edge in may if edge < len(edges_at)}), len(edges_at)]
    groups = []
    for start, stop in itertools.pairwise(edges):
        names, starts = zip(*edges_at[start:stop], strict=True)
        groups.append(Group(names, draw(st.integers(1, 3)), draw(st.integers(0, 2)), starts))
    return groups


@settings(max_examples=num_examples(120), deadline=None)
@given(cases_of(plans), st.integers(0, 5))
def test_random_graphs_compute_the_same_in_one_order(case, seed: int) -> None:
    graph, groups, after_backward = case
    plan = register(groups, after_backward=after_backward)
    untouched = fuse_apart(graph, register([Group(["of another model"])]))
    rewritten = fuse_apart(graph, plan)
    if not fused(rewritten):
        assert rewritten == untouched
        return
    assert fuse_apart(rewritten, plan) == rewritten
    computes_the_same_in_one_order(untouched, rewritten, seed, num_runs=3)


def chain(*tensors: str) -> GraphBuilder:
    builder = GraphBuilder()
    builder.step(tensors)
    return builder


def test_groups_hold_parts_and_whole_tensors() -> None:
    plan = register([Group("a", part_starts=[0]), Group("ab", part_starts=[8, -1])])
    rewritten = fuse_apart(chain("a", "b").graph, plan)
    assert list(fused(rewritten).values()) == [["a"], ["a", "b"]]
    assert_acyclic(rewritten)
    groups = report(plan)["graph"]["groups"]
    assert [[tensor["producer"] for tensor in group["tensors"]] for group in groups] == [
        ["a_cut"],
        ["a_cut", "grad_b"],
    ]
    assert reasons(plan) == {}


def test_fetches_and_targets_have_their_names() -> None:
    plan = register([Group("a", part_starts=[0]), Group("a", part_starts=[8])])
    for keep in ({"fetch": ["a", "update_a"]}, {"targets": ["a"]}):
        rewritten = optimize(chain("a").graph, config(plan), **keep)
        assert nodes(rewritten)["a"].op == "LibraJoin"
        assert node_name(nodes(rewritten)["update_a"].input[0]) == "a"


def test_copies_of_a_step_are_cut_each() -> None:
    builder = GraphBuilder()
    builder.step("ab")
    builder.step("ab", prefix="second_", after=["^update_a", "^update_b"])
    plan = register([Group("a", part_starts=[0]), Group("ab", part_starts=[4, -1])])
    rewritten = fuse_apart(builder.graph, plan)
    assert len(fused(rewritten)) == 4
    assert {group["copy"] for group in report(plan)["graph"]["groups"]} == {0, 1}
    assert reasons(plan) == {}


def test_an_op_that_knows_no_parts_leaves_the_tensor_whole() -> None:
    plan = register([Group("a", part_starts=[0]), Group("ab", part_starts=[8, -1])])
    rewritten = optimize(chain("a", "b").graph, config(plan, op="HorovodGroupedAllreduce"))
    assert nodes(rewritten)["a"].op == "LibraAllReduce"
