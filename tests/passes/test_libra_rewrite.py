"""The pass on hand-made graphs, run by TensorFlow's Grappler with no other optimizer."""

import pytest
import tensorflow as tf

from tests.passes.executor import computes_the_same_in_one_order
from tests.passes.graphs import (
    GraphBuilder,
    Group,
    assert_acyclic,
    config,
    controls,
    data,
    fuse,
    fuse_apart,
    fused,
    joined,
    nodes,
    optimize,
    reasons,
    register,
    report,
    tensor_names,
)
from tests.passes.training_graphs import TrainingGraph
from tf_libra.specs.telemetry import UNPLANNED


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
            },
            {
                "group": 1,
                "copy": 0,
                "node": f"tf_libra/{plan}/group_1",
                "num_threads": 1,
                "dtype": "float",
                "tensors": [{"name": "b", "producer": "split", "port": 0}],
                "control_inputs": [f"tf_libra/{plan}/group_0"],
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
def test_what_differs_is_not_fused(what: str) -> None:
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


def chain(graph) -> list[str]:
    """The all-reduces in the order in which control edges put them."""
    by_name = nodes(graph)
    before = {
        name: [other for other in controls(node) if by_name[other].op == "LibraAllReduce"]
        for name, node in by_name.items()
        if node.op == "LibraAllReduce"
    }
    order: list[str] = []
    while len(order) < len(before):
        (following,) = (n for n in before if n not in order and set(before[n]) <= {*order})
        assert not order or order[-1] in before[following]
        order.append(following)
    return order


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


def test_an_all_reduce_that_stays_keeps_a_place_in_the_order() -> None:
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
def test_what_a_group_depends_on_comes_before_it_when_it_is_there(is_late: bool) -> None:
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


def test_missing_tensors_are_reported_and_the_others_fused() -> None:
    builder = GraphBuilder()
    builder.step("ac")
    plan = register([Group("abc"), Group("d")])
    graph = fuse(builder.graph, plan)
    assert list(fused(graph).values()) == [["a", "c"]]
    assert set(reasons(plan)) == {"b", "d"}


def test_a_fetched_all_reduce_keeps_its_name_and_value() -> None:
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


def fuse_nothing(builder: GraphBuilder):
    """Returns Grappler's result for the graph under a plan that has nothing to do with it."""
    return fuse(builder.graph, register([Group(["of another model"])]))


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
