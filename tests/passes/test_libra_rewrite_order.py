"""The order of all-reduces in rewritten hand-made graphs."""

import pytest
import tensorflow as tf

from tests.passes.executor import computes_the_same_in_one_order
from tests.passes.graphs import (
    GraphBuilder,
    Group,
    assert_acyclic,
    controls,
    data,
    fuse,
    fuse_apart,
    fused,
    nodes,
    reasons,
    register,
    tensor_names,
)
from tests.passes.rewrite_helpers import chain
from tests.passes.training_graphs import TrainingGraph
from tf_libra.specs.telemetry import UNPLANNED


def test_fusing_one_group_may_forbid_another() -> None:
    # a -> c and d -> b: each group alone could be fused, both would close a cycle.
    builder = GraphBuilder()
    builder.reduce("a", builder.source("grad_a"))
    builder.reduce("d", builder.source("grad_d"))
    builder.reduce("c", builder.add("grad_c", "a"))
    builder.reduce("b", builder.add("grad_b", "d"))
    plan = register([Group("ab"), Group("cd")])

    graph = fuse(builder.graph, plan)

    assert_acyclic(graph)
    assert list(fused(graph).values()) == [["a", "b"], ["d"], ["c"]]


def test_a_dependency_against_the_order_of_the_plan_wins() -> None:
    builder = GraphBuilder()
    builder.reduce("b", builder.source("grad_b"))
    builder.reduce("a", builder.add("grad_a", "b"))
    builder.reduce("c", builder.source("grad_c"))
    plan = register([Group("a"), Group("b"), Group("c")])

    graph = fuse(builder.graph, plan)

    assert_acyclic(graph)
    prefix = f"tf_libra/{plan}/group_"
    assert chain(graph) == [f"{prefix}1", f"{prefix}0", f"{prefix}2"]
    assert f"'{prefix}1'" in reasons(plan)[f"{prefix}0"]


def test_a_cycle_through_ordering_edges_is_seen() -> None:
    # d -> a is in the graph; a -> b -> c -> d, the order of the plan, would close the circle.
    builder = GraphBuilder()
    builder.reduce("d", builder.source("grad_d"))
    builder.reduce("a", builder.add("grad_a", "d"))
    builder.reduce("b", builder.source("grad_b"))
    builder.reduce("c", builder.source("grad_c"))
    plan = register([Group(name) for name in "abcd"])

    graph = fuse(builder.graph, plan)

    assert_acyclic(graph)
    assert chain(graph) == [f"tf_libra/{plan}/group_{k}" for k in (1, 2, 3, 0)]
    assert set(reasons(plan)) == {f"tf_libra/{plan}/group_0"}


def late(builder: GraphBuilder, name: str, *inputs: str) -> str:
    """A node behind many others."""
    for i in range(9):
        inputs = (builder.add(f"{name}_{i}", *inputs),)
    return builder.add(name, *inputs)


def test_gathered_rows_stay_and_are_no_plan_that_was_written() -> None:
    builder = GraphBuilder()
    builder.step("ab")
    for name in ("rows", "values"):
        builder.reduce(name, builder.source(f"local_{name}"))
        builder.graph.node[-1].attr["plan"].s = UNPLANNED.encode()
    plan = register([Group("ab")])

    graph = fuse(builder.graph, plan)

    name = f"tf_libra/{plan}/group_0"
    by_name = nodes(graph)
    assert tensor_names(by_name[name]) == ["a", "b"]
    assert reasons(plan) == {}
    # They come behind the group, in one order.
    assert controls(by_name["rows"]) == [name]
    assert controls(by_name["values"]) == ["rows"]
    assert fuse(graph, plan) == graph


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("ends", [["ends"], ["ends", "shared"]])
def test_planned_rows_run_in_their_group_and_what_they_need_comes_first(
    apart: bool, ends: list[str]
) -> None:
    # Automatic control dependencies put the exchange of ids behind the first gradient.
    builder = GraphBuilder()
    builder.reduce("a", late(builder, "grad_a"))
    ids = builder.reduce("ids", builder.source("local_ids"), "^a")
    builder.graph.node[-1].attr["plan"].s = UNPLANNED.encode()
    for name in ends:
        builder.node("Cast", name, [ids])
        builder.graph.node[-1].attr["SrcT"].type = tf.float32.as_datatype_enum
        builder.graph.node[-1].attr["DstT"].type = tf.int32.as_datatype_enum
    builder.reduce("b", late(builder, "grad_b"), *ends, "^ids")
    builder.graph.node[-1].attr["E"].i = len(ends)
    builder.reduce("c", late(builder, "grad_c"), "^b")
    plan = register([Group("ab"), Group("c", num_threads=2)], wire_dtype="bfloat16")

    graph = (fuse_apart if apart else fuse)(builder.graph, plan)

    assert_acyclic(graph)
    by_name, prefix = nodes(graph), f"tf_libra/{plan}/group_"
    rows = by_name[f"{prefix}0_part_1"]
    assert tensor_names(rows) == ["b"]
    assert data(rows) == ["grad_b", *ends]
    assert rows.attr["E"].i == len(ends)
    assert rows.attr["group"].i == 0
    assert not rows.attr["wire_dtype"].s  # rows are never rounded
    assert by_name[f"{prefix}0"].attr["wire_dtype"].s == b"bfloat16"
    assert controls(by_name["ids"]) == []
    assert controls(by_name[f"{prefix}0"]) == ["ids"]
    assert f"{prefix}0" in controls(rows)
    assert f"{prefix}0_part_1" in controls(by_name[f"{prefix}1"])


def test_unfused_all_reduce_stays_in_the_order() -> None:
    # Every rank has to start them in one order, so the plan's order must not set `u` free.
    builder = GraphBuilder()
    builder.step("abu")
    plan = register([Group("b"), Group("a")])
    graph = fuse(builder.graph, plan)
    assert_acyclic(graph)
    prefix = f"tf_libra/{plan}/group_"
    assert chain(graph) == [f"{prefix}0", f"{prefix}1", "u"]


def test_an_all_reduce_that_stays_holds_no_group_up() -> None:
    builder = GraphBuilder()
    builder.reduce("u", late(builder, "grad_u"))
    for name, before in (("a", "u"), ("b", "a")):
        builder.reduce(name, builder.source(f"grad_{name}"), f"^{before}")
    plan = register([Group("a"), Group("b")])
    graph = fuse(builder.graph, plan)
    assert_acyclic(graph)
    prefix = f"tf_libra/{plan}/group_"
    assert chain(graph) == [f"{prefix}0", f"{prefix}1", "u"]
    assert "u" not in controls(nodes(graph)[f"{prefix}0"])


@pytest.mark.parametrize("is_late", [False, True])
def test_dependency_of_a_group_comes_before_it_if_present(is_late: bool) -> None:
    # `u` has to run before `b`, and holds up the first group only if its input is there earlier.
    builder = GraphBuilder()
    if is_late:
        builder.reduce("u", late(builder, "grad_u"))
        builder.reduce("a", builder.add("grad_a", builder.source("x")))
    else:
        builder.reduce("u", builder.source("grad_u"))
        builder.reduce("a", late(builder, "grad_a"))
    builder.reduce("b", builder.add("grad_b", "u"))
    plan = register([Group("a"), Group("b")])
    graph = fuse(builder.graph, plan)
    assert_acyclic(graph)
    first, second = (f"tf_libra/{plan}/group_{k}" for k in (0, 1))
    assert chain(graph) == ([first, "u", second] if is_late else ["u", first, second])


def test_those_that_stay_are_in_the_same_order_whatever_the_order_in_the_graph() -> None:
    chains = []
    for reverse in (False, True):
        builder = GraphBuilder()
        builder.reduce("early", builder.source("grad_early"))
        for name in "vuw":
            builder.reduce(name, late(builder, f"grad_{name}"))
        builder.step("a")
        builder.graph.node.sort(key=lambda node: node.name, reverse=reverse)
        graph = fuse(builder.graph, register([Group("a")], plan=f"stay {reverse}"))
        chains.append(chain(graph)[1:])
    assert chains == [["early", "u", "v", "w"]] * 2


def test_after_backward_every_group_waits_for_every_gradient() -> None:
    builder = GraphBuilder()
    builder.step("abc")
    plan = register([Group("ab"), Group("c")], after_backward=True)
    graph = fuse(builder.graph, plan)
    assert_acyclic(graph)
    by_name = nodes(graph)
    prefix = f"tf_libra/{plan}/"
    barrier = f"{prefix}after_backward"
    assert by_name[barrier].op == "NoOp"
    assert controls(by_name[barrier]) == ["grad_a", "grad_b", "grad_c"]
    assert controls(by_name[f"{prefix}group_0"]) == [barrier]
    assert controls(by_name[f"{prefix}group_1"]) == [f"{prefix}group_0", barrier]


def test_after_backward_does_not_wait_for_what_depends_on_a_group() -> None:
    builder = GraphBuilder()
    builder.reduce("a", builder.source("grad_a"))
    builder.reduce("b", builder.add("grad_b", "a"))
    builder.reduce("c", builder.source("grad_c"))
    plan = register([Group("a"), Group("b"), Group("c")], after_backward=True)
    graph = fuse(builder.graph, plan)
    assert_acyclic(graph)
    assert controls(nodes(graph)[f"tf_libra/{plan}/after_backward"]) == ["grad_a", "grad_c"]
    assert "not waited for" in reasons(plan)["b"]


def test_after_backward_holds_within_each_copy() -> None:
    builder = GraphBuilder()
    builder.step("ab", prefix="first/")
    builder.step("ab", prefix="second/", after=["^first/update_a", "^first/update_b"])
    plan = register([Group("a"), Group("b")], after_backward=True)
    graph = fuse(builder.graph, plan)
    assert_acyclic(graph)
    barrier = f"tf_libra/{plan}/after_backward"
    by_name = nodes(graph)
    assert controls(by_name[barrier]) == ["first/grad_a", "first/grad_b"]
    assert controls(by_name[f"{barrier}_copy_1"]) == ["second/grad_a", "second/grad_b"]


def conditionals_and_loops(number: int, length: int) -> TrainingGraph:
    """A graph of `number` conditionals and loops that all-reduce, each behind `length` nodes.

    Two of three read the result of the one before.
    """
    builder = TrainingGraph()
    start = end = builder.source("x")
    for i in range(number):
        end = start if i % 3 == 0 else end
        for j in range(length):
            end = builder.identity(f"to{i}/{j}", end)
        if i % 4 == 3:
            (end,) = builder.loop(f"n{i}", end, reduces=True)
        else:
            end = builder.conditional(f"n{i}", end, ("then", "else", "then and else")[i % 4])
    return builder


def test_many_conditionals_and_loops_are_in_one_order() -> None:
    graph = conditionals_and_loops(40, length=2).graph
    plan = register([Group([f"n{i}"]) for i in range(40)])
    rewritten = fuse_apart(graph, plan)
    assert len(fused(rewritten)) == 50  # with those of ten in both branches
    for seed in range(3):
        computes_the_same_in_one_order(graph, rewritten, seed, num_runs=3)


def test_hundreds_of_conditionals_and_loops_in_a_large_graph() -> None:
    graph = conditionals_and_loops(400, length=90).graph
    plan = register([Group([f"n{i}"]) for i in range(400)])
    assert len(fused(fuse_apart(graph, plan))) == 500
    assert reasons(plan) == {}
