"""The pass on hand-made graphs, run by TensorFlow's Grappler with no other optimizer."""

import pytest
import tensorflow as tf

from tests.passes.graphs import (
    GraphBuilder,
    Group,
    assert_acyclic,
    config,
    controls,
    data,
    fuse,
    fused,
    joined,
    nodes,
    optimize,
    reasons,
    register,
    report,
    tensor_names,
)
from tests.passes.rewrite_helpers import chain, fuse_nothing


def test_groups_threads_and_order_of_a_plan_are_written() -> None:
    builder = GraphBuilder()
    builder.step("abcde")
    plan = register([Group("ab", 1), Group("cd", 2, stream=1), Group("e", 1)])

    graph = fuse(builder.graph, plan)

    assert_acyclic(graph)
    by_name = nodes(graph)
    prefix = f"tf_libra/{plan}/group_"
    assert fused(graph) == {f"{prefix}0": ["a", "b"], f"{prefix}1": ["c", "d"], f"{prefix}2": ["e"]}
    written = [by_name[f"{prefix}{k}"] for k in range(3)]
    assert [node.attr["num_threads"].i for node in written] == [1, 2, 1]
    assert [node.attr["group"].i for node in written] == [0, 1, 2]
    assert [node.attr["stream"].i for node in written] == [0, 1, 0]
    assert [node.attr["N"].i for node in written] == [2, 2, 1]
    assert {node.attr["plan"].s.decode() for node in written} == {plan}
    assert [data(node) for node in written] == [
        ["grad_a", "grad_b"],
        ["grad_c", "grad_d"],
        ["grad_e"],
    ]
    assert [controls(node) for node in written] == [[], [f"{prefix}0"], [f"{prefix}1"]]
    assert not set("abcde") & by_name.keys()
    assert data(by_name["update_a"]) == [f"{prefix}0"]
    assert data(by_name["update_b"]) == [f"{prefix}0:1"]
    assert data(by_name["update_d"]) == [f"{prefix}1:1"]


def test_the_report_says_what_was_written() -> None:
    builder = GraphBuilder()
    builder.node("Split", "split", [builder.source("dim", dtype=tf.int32), builder.source("x")])
    builder.graph.node[-1].attr["num_split"].i = 2
    builder.graph.node[-1].attr["T"].type = tf.float32.as_datatype_enum
    builder.reduce("a", "split:1")
    builder.reduce("b", "split:0")
    plan = register([Group("a", 3), Group("b")])

    fuse(builder.graph, plan)

    assert report(plan)["graph"] == {
        "graph": "graph",
        "in_force": None,
        "exchanged": [],
        "fused_updates": 0,
        "left": [],
        "groups": [
            {
                "group": 0,
                "copy": 0,
                "node": f"tf_libra/{plan}/group_0",
                "num_threads": 3,
                "dtype": "float",
                "tensors": [{"name": "a", "producer": "split", "port": 1}],
                "control_inputs": [],
                "is_sharded": False,
                "whole": "",
            },
            {
                "group": 1,
                "copy": 0,
                "node": f"tf_libra/{plan}/group_1",
                "num_threads": 1,
                "dtype": "float",
                "tensors": [{"name": "b", "producer": "split", "port": 0}],
                "control_inputs": [f"tf_libra/{plan}/group_0"],
                "is_sharded": False,
                "whole": "",
            },
        ],
        "skipped": [],
    }


def test_tensors_stand_in_plan_order_whatever_the_order_in_the_graph() -> None:
    builder = GraphBuilder()
    builder.step("cab")
    plan = register([Group("abc")])
    graph = fuse(builder.graph, plan)
    (node,) = (nodes(graph)[name] for name in fused(graph))
    assert tensor_names(node) == ["a", "b", "c"]
    assert data(node) == ["grad_a", "grad_b", "grad_c"]


def test_all_forms_of_edges_follow() -> None:
    builder = GraphBuilder()
    builder.source("before_a")
    builder.source("before_both")
    builder.source("grad")
    builder.reduce("a", "grad:0", "^before_a", "^before_both")
    builder.reduce("b", "grad", "^before_both", "^a")
    builder.add("sum", "b:0", "a", "b", "^a", "^b", "^grad")
    builder.no_op("done", "^a", "^b")
    plan = register([Group("ab")])

    graph = fuse(builder.graph, plan)

    by_name = nodes(graph)
    node = f"tf_libra/{plan}/group_0"
    assert list(by_name[node].input) == ["grad", "grad", "^before_a", "^before_both"]
    assert list(by_name["sum"].input) == [f"{node}:1", node, f"{node}:1", f"^{node}", "^grad"]
    assert list(by_name["done"].input) == [f"^{node}"]


@pytest.mark.parametrize("what", ["dtype", "device", "reduction"])
def test_all_reduces_that_differ_are_not_fused(what: str) -> None:
    first, second = {
        "dtype": (tf.float32, tf.float16),
        "device": ("/device:CPU:0", "/device:CPU:1"),
        "reduction": ("average", "sum"),
    }[what]
    builder = GraphBuilder()
    for name, value in zip("abcd", (first, second, first, second), strict=True):
        builder.source(f"grad_{name}", dtype=value if what == "dtype" else tf.float32)
        builder.reduce(name, f"grad_{name}", **{what: value})
    builder.step("e")
    plan = register([Group("abcd", 2), Group("e")])

    graph = fuse(builder.graph, plan)

    prefix = f"tf_libra/{plan}/group_0"
    by_name = nodes(graph)
    parts = {name: tensors for name, tensors in fused(graph).items() if name.startswith(prefix)}
    assert parts == {prefix: ["a", "c"], f"{prefix}_part_1": ["b", "d"]}
    assert controls(by_name[f"{prefix}_part_1"]) == [prefix]
    assert controls(by_name[f"tf_libra/{plan}/group_1"]) == [f"{prefix}_part_1"]
    assert {by_name[name].attr["num_threads"].i for name in parts} == {2}
    assert "group 0" in reasons(plan)["b"]
    if what == "dtype":
        assert by_name[prefix].attr["T"].type == tf.float32.as_datatype_enum
        assert by_name[f"{prefix}_part_1"].attr["T"].type == tf.float16.as_datatype_enum
    elif what == "device":
        assert by_name[prefix].device == first
        assert by_name[f"{prefix}_part_1"].device == second
    else:
        assert by_name[prefix].attr["reduction"].s == b"average"
        assert by_name[f"{prefix}_part_1"].attr["reduction"].s == b"sum"


def test_a_stripped_default_is_the_default() -> None:
    builder = GraphBuilder()
    builder.reduce("a", builder.source("x"))
    builder.reduce("b", "x", reduction="average")
    plan = register([Group("ab")])
    assert list(fused(fuse(builder.graph, plan)).values()) == [["a", "b"]]


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(lambda b: b.add("grad_b", "a"), id="data"),
        pytest.param(lambda b: b.source("grad_b", "^a"), id="control"),
        pytest.param(lambda b: b.add("grad_b", b.identity("i", b.add("j", "a"))), id="long"),
        pytest.param(lambda b: b.source("grad_b", "^" + b.no_op("n", "^a")), id="no_op"),
    ],
)
def test_a_path_forbids_fusing(between) -> None:
    builder = GraphBuilder()
    builder.reduce("a", builder.source("grad_a"))
    between(builder)
    builder.reduce("b", "grad_b", "^a")
    builder.reduce("c", builder.source("grad_c"), "^b")
    plan = register([Group("abc", 2)])

    graph = fuse(builder.graph, plan)

    assert_acyclic(graph)
    prefix = f"tf_libra/{plan}/group_0"
    assert fused(graph) == {prefix: ["a", "c"], f"{prefix}_part_1": ["b"]}
    assert "'a'" in reasons(plan)["b"]
    assert [nodes(graph)[name].attr["num_threads"].i for name in fused(graph)] == [2, 2]


@pytest.mark.parametrize("relay", ["no_op", "identity"])
def test_a_relay_of_control_counts_as_a_path(relay: str) -> None:
    builder = GraphBuilder()
    builder.reduce("a", builder.source("grad_a"))
    if relay == "no_op":
        builder.no_op("relay", "^a")
    else:
        builder.identity("relay", builder.source("x"), "^a")
    builder.reduce("b", builder.source("grad_b"), "^relay")
    plan = register([Group("ab")])
    assert list(fused(fuse(builder.graph, plan)).values()) == [["a"], ["b"]]


def test_a_path_through_an_all_reduce_that_stays_counts() -> None:
    builder = GraphBuilder()
    builder.reduce("a", builder.source("grad_a"))
    builder.reduce("u", builder.add("grad_u", "a"), "^a")
    builder.reduce("b", builder.source("grad_b", "^u"), "^u")
    plan = register([Group("ab")])
    graph = fuse(builder.graph, plan)
    assert list(fused(graph).values()) == [["a"], ["b"]]
    assert chain(graph) == [f"tf_libra/{plan}/group_0", "u", f"tf_libra/{plan}/group_0_part_1"]
    assert "not in the plan" in reasons(plan)["u"]


def test_the_order_in_which_they_were_traced_is_no_path() -> None:
    builder = GraphBuilder()
    builder.step("aub")
    plan = register([Group("ab")])
    graph = fuse(builder.graph, plan)
    assert list(fused(graph).values()) == [["a", "b"]]
    assert chain(graph) == [f"tf_libra/{plan}/group_0", "u"]


def test_missing_tensors_are_reported_and_the_others_fused() -> None:
    builder = GraphBuilder()
    builder.step("ac")
    plan = register([Group("abc"), Group("d")])
    graph = fuse(builder.graph, plan)
    assert list(fused(graph).values()) == [["a", "c"]]
    assert set(reasons(plan)) == {"b", "d"}


def test_fetched_all_reduce_has_its_name_and_value() -> None:
    builder = GraphBuilder()
    builder.step("ab")
    plan = register([Group("ab")])
    graph = fuse(builder.graph, plan, fetch=["a", "b", "update_a", "update_b"])
    by_name = nodes(graph)
    node = f"tf_libra/{plan}/group_0"
    assert (by_name["a"].op, data(by_name["a"])) == ("Identity", [node])
    assert (by_name["b"].op, data(by_name["b"])) == ("Identity", [f"{node}:1"])
    assert by_name["b"].attr["T"].type == tf.float32.as_datatype_enum
    assert data(by_name["update_b"]) == [f"{node}:1"]


def test_a_target_is_not_copied() -> None:
    builder = GraphBuilder()
    for name in "ab":
        builder.reduce(name, builder.source(f"grad_{name}"), device="/device:CPU:0")
    builder.identity("y", "b")
    plan = register([Group("ab")])
    graph = joined(optimize(builder.graph, config(plan), fetch=["y"], targets=["a"]))
    node = f"tf_libra/{plan}/group_0"
    left = nodes(graph)["a"]
    assert (left.op, list(left.input), left.device) == ("NoOp", [f"^{node}"], "/device:CPU:0")
    assert "b" not in nodes(graph)
    assert data(nodes(graph)["y"]) == [f"{node}:1"]


def test_a_fed_all_reduce_is_left_alone() -> None:
    builder = GraphBuilder()
    builder.step("abc")
    plan = register([Group("abc")])
    graph = fuse(builder.graph, plan, feed=["c"])
    assert list(fused(graph).values()) == [["a", "b"]]
    assert nodes(graph)["c"].op == "LibraAllReduce"
    assert "fed" in reasons(plan)["c"]


def test_unknown_plan_digest_or_op_change_nothing() -> None:
    builder = GraphBuilder()
    builder.step("ab")
    untouched = fuse_nothing(builder)
    plan = register([Group("ab")], digest="right")

    assert optimize(builder.graph, config("never registered")) == untouched
    assert "not registered" in reasons("never registered")["never registered"]
    assert optimize(builder.graph, config(plan, digest="wrong")) == untouched
    assert "'right', not 'wrong'" in reasons(plan)[plan]
    assert optimize(builder.graph, config(plan, digest="right", op="Other")) == untouched
    assert "'Other'" in reasons(plan)[plan]
    assert optimize(builder.graph, config(plan, digest="right")) != untouched
    assert reasons(plan) == {}


def test_a_graph_without_marked_all_reduces_is_not_reported() -> None:
    builder = GraphBuilder()
    builder.identity("y", builder.source("x"))
    plan = register([Group("a")])
    fuse(builder.graph, plan)
    assert report(plan) == {}


def test_names_are_legal_and_new() -> None:
    builder = GraphBuilder()
    plan = register([Group("ab")], plan="plan of <today>: 1/2")
    taken = "tf_libra/plan_of__today___1_2/group_0"
    builder.source(taken)
    builder.step("ab")
    assert fused(fuse(builder.graph, plan)) == {f"{taken}_1": ["a", "b"]}


@pytest.mark.parametrize("wrong", ["two names", "no name", "no dtype", "two inputs"])
def test_malformed_all_reduces_are_left_alone(wrong: str) -> None:
    builder = GraphBuilder()
    builder.step("abc")
    node = nodes(builder.graph)["b"]
    if wrong == "two names":
        node.attr["tensor_names"].list.s.append(b"d")
    elif wrong == "no name":
        del node.attr["tensor_names"].list.s[:]
    elif wrong == "no dtype":
        del node.attr["T"]
    else:
        node.input.insert(0, "grad_a")
    plan = register([Group("abcd")])
    graph = fuse(builder.graph, plan)
    assert ["a", "c"] in fused(graph).values()
    left = nodes(graph)["b"]
    assert (left.op, data(left)) == ("LibraAllReduce", data(node))
    assert left.attr["tensor_names"] == node.attr["tensor_names"]
    assert not left.attr["plan"].s
    assert "exactly one" in reasons(plan)["b"] or "dtype" in reasons(plan)["b"]
