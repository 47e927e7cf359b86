"""Graphs with several steps, or several copies of one, under the pass."""

from tests.passes.graphs import (
    GraphBuilder,
    Group,
    assert_acyclic,
    controls,
    data,
    fuse,
    fused,
    nodes,
    reasons,
    register,
    report,
)
from tests.passes.rewrite_helpers import fuse_nothing


def test_two_training_functions_are_never_fused() -> None:
    builder = GraphBuilder()
    for function, tensors in (("one", "ab"), ("two", "bc")):
        for tensor in tensors:
            name = f"{function}_{tensor}"
            builder.reduce(name, builder.source(f"grad_{name}"), tensor=tensor)
            builder.graph.node[-1].attr["function"].s = function.encode()
    plan = register([Group("abc")])
    graph = fuse(builder.graph, plan)
    by_name = nodes(graph)
    found = {by_name[name].attr["function"].s: tensors for name, tensors in fused(graph).items()}
    assert found == {b"one": ["a", "b"], b"two": ["b", "c"]}


def test_a_second_run_changes_nothing() -> None:
    builder = GraphBuilder()
    builder.step("abu")
    builder.reduce("c", builder.add("grad_c", "a"), "^u")
    builder.reduce("fed", builder.source("grad_fed"))
    plan = register([Group("ca"), Group(["b", "fed"])], after_backward=True)

    once = fuse(builder.graph, plan, feed=["fed"])
    first_report = report(plan)
    twice = fuse(once, plan, feed=["fed"])

    assert once.SerializeToString(deterministic=True) == twice.SerializeToString(deterministic=True)
    assert report(plan) == first_report


def test_copies_of_a_step_are_not_mixed() -> None:
    builder = GraphBuilder()
    builder.step("abc", prefix="first/")
    builder.step("abc", prefix="second/", after=["^first/update_c"])
    builder.graph.node.sort(key=lambda node: node.name, reverse=True)
    nodes(builder.graph)["second/a"].input.append("^first/c")
    plan = register([Group("ab", 1), Group("c", 2)])

    graph = fuse(builder.graph, plan)

    assert_acyclic(graph)
    by_name = nodes(graph)
    prefix = f"tf_libra/{plan}/group_"
    assert fused(graph) == {
        f"{prefix}0": ["a", "b"],
        f"{prefix}1": ["c"],
        f"{prefix}0_copy_1": ["a", "b"],
        f"{prefix}1_copy_1": ["c"],
    }
    assert data(by_name[f"{prefix}0"]) == ["first/grad_a", "first/grad_b"]
    assert data(by_name[f"{prefix}0_copy_1"]) == ["second/grad_a", "second/grad_b"]
    assert controls(by_name[f"{prefix}1"]) == [f"{prefix}0"]
    assert controls(by_name[f"{prefix}1_copy_1"]) == [f"{prefix}0_copy_1"]
    # A direct edge between two copies is no leftover of one step's chain: it stays.
    assert controls(by_name[f"{prefix}0_copy_1"]) == [f"{prefix}1"]
    assert [group["copy"] for group in report(plan)["graph"]["groups"]] == [0, 0, 1, 1]


def test_copies_without_an_order_are_left_alone() -> None:
    builder = GraphBuilder()
    builder.step("ab", prefix="left/")
    builder.step("ab", prefix="right/")
    plan = register([Group("ab")])
    graph = fuse(builder.graph, plan)
    assert graph == fuse_nothing(builder)
    assert "more than once" in reasons(plan)[plan]


def test_a_tensor_that_one_copy_lacks_is_not_taken_from_another() -> None:
    builder = GraphBuilder()
    builder.step("a", prefix="first/")
    builder.step("ab", prefix="second/", after=["^first/update_a"])
    plan = register([Group("ab")])
    graph = fuse(builder.graph, plan)
    assert_acyclic(graph)
    assert sorted(fused(graph).values()) == [["a"], ["a"], ["b"]]


def test_many_tensors_in_many_copies() -> None:
    tensors = [f"t{i}" for i in range(700)]
    builder = GraphBuilder()
    after: list[str] = []
    for copy in range(4):
        builder.step(tensors, prefix=f"{copy}/", after=after)
        after = [f"^{builder.no_op(f'{copy}/done', *(f'^{copy}/update_{t}' for t in tensors))}"]
    plan = register([Group(tensors[i : i + 2]) for i in range(0, 700, 2)], after_backward=True)
    graph = fuse(builder.graph, plan)
    assert_acyclic(graph)
    assert len(fused(graph)) == 4 * 350
    assert reasons(plan) == {}
