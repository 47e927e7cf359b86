"""Groups written as Horovod's op, on hand-made graphs."""

import horovod.tensorflow  # noqa: F401  loads the op
import tensorflow as tf
from tensorflow.python.framework import kernels

from tests.passes.graphs import (
    GraphBuilder,
    Group,
    assert_acyclic,
    config,
    controls,
    data,
    nodes,
    optimize,
    reasons,
    register,
    report,
)
from tf_libra.profiling.executed_graph import PlacedAllReduce, gradient_sources, placed_all_reduces

OP = "HorovodGroupedAllreduce"
GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def test_groups_are_written_as_horovods_op() -> None:
    builder = GraphBuilder()
    builder.step("abcde")
    plan = register([Group("ab", 128), Group("cd", 256), Group("e", 128)])

    graph = optimize(builder.graph, config(plan, op=OP))

    assert_acyclic(graph)
    by_name = nodes(graph)
    prefix = f"tf_libra/{plan}/group_"
    written = [by_name[f"{prefix}{k}"] for k in range(3)]
    assert {node.op for node in written} == {OP}
    assert [node.attr["num_tensors"].i for node in written] == [2, 2, 1]
    assert [node.attr["reduce_op"].i for node in written] == [0, 0, 0]
    assert {node.attr["T"].type for node in written} == {tf.float32.as_datatype_enum}
    for factor in ("prescale_factor", "postscale_factor"):
        assert [node.attr[factor].f for node in written] == [1.0, 1.0, 1.0]
    assert [node.attr["process_set_id"].i for node in written] == [0, 0, 0]
    assert not any(node.attr["ignore_name_scope"].b for node in written)
    assert [data(node) for node in written] == [
        ["grad_a", "grad_b"],
        ["grad_c", "grad_d"],
        ["grad_e"],
    ]
    assert [controls(node) for node in written] == [[], [f"{prefix}0"], [f"{prefix}1"]]
    assert data(by_name["update_b"]) == [f"{prefix}0:1"]
    assert not any(node.op == "LibraAllReduce" for node in graph.node)
    groups = report(plan)["graph"]["groups"]
    assert [[t["name"] for t in group["tensors"]] for group in groups] == [
        ["a", "b"],
        ["c", "d"],
        ["e"],
    ]


def test_graph_has_names_groups_and_threads() -> None:
    builder = GraphBuilder()
    builder.step("abc")
    plan = register([Group("ab", 128), Group("c", 256)])

    graph = optimize(builder.graph, config(plan, op=OP))

    prefix = f"tf_libra/{plan}/group_"
    assert placed_all_reduces([graph]) == (
        PlacedAllReduce(f"{prefix}0", 0, 128, ("a", "b")),
        PlacedAllReduce(f"{prefix}1", 1, 256, ("c",)),
    )
    producers = {name: (f"grad_{name}",) for name in "abc"}
    assert gradient_sources([graph]).producers == producers


def test_an_op_behind_each_group_tells_when_it_ends() -> None:
    builder = GraphBuilder()
    builder.step("abc")
    plan = register([Group("ab"), Group("c")])

    by_name = nodes(optimize(builder.graph, config(plan, op=OP)))

    for group in (0, 1):
        done = by_name[f"tf_libra/{plan}/group_{group}_done"]
        assert done.op == "LibraAllReduceDone"
        assert list(done.input) == [f"^tf_libra/{plan}/group_{group}"]
    # Else nothing would run it.
    assert f"tf_libra/{plan}/group_0_done" in controls(by_name["update_b"])


def test_the_op_that_tells_of_the_end_runs_on_gpus_too() -> None:
    registered = kernels.get_registered_kernels_for_op("LibraAllReduceDone")
    assert {kernel.device_type for kernel in registered.kernel} == {"CPU", "GPU"}


def test_sums_are_apart_from_averages() -> None:
    builder = GraphBuilder()
    for name, reduction in (("a", "sum"), ("b", "average"), ("c", "sum")):
        builder.reduce(name, builder.source(f"grad_{name}"), reduction=reduction)
    plan = register([Group("abc")])

    graph = optimize(builder.graph, config(plan, op=OP))

    found = {tuple(data(n)): n.attr["reduce_op"].i for n in graph.node if n.op == OP}
    assert found == {("grad_a", "grad_c"): 1, ("grad_b",): 0}


def test_all_reduces_that_horovod_cannot_execute_stay() -> None:
    builder = GraphBuilder()
    builder.reduce("a", builder.source("grad_a"))
    builder.reduce("b", builder.source("grad_b", dtype=tf.bfloat16), "^a", dtype=tf.bfloat16)
    builder.reduce("c", builder.source("grad_c"), "^b")
    plan = register([Group("abc")])

    graph = optimize(builder.graph, config(plan, op=OP))

    assert_acyclic(graph)
    by_name = nodes(graph)
    assert by_name["b"].op == "LibraAllReduce"
    assert data(by_name[f"tf_libra/{plan}/group_0"]) == ["grad_a", "grad_c"]
    assert "Horovod does not reduce bfloat16" in reasons(plan)["b"]


def test_a_gpu_for_which_horovod_has_no_kernel_is_not_taken() -> None:
    builder = GraphBuilder()
    builder.source("grad_a")
    builder.graph.node[-1].device = GPU
    builder.reduce("a", "grad_a", device=CPU)
    plan = register([Group("a")])

    by_name = nodes(optimize(builder.graph, config(plan, op=OP)))

    assert by_name[f"tf_libra/{plan}/group_0"].device == CPU


def test_a_second_run_finds_nothing_to_do() -> None:
    builder = GraphBuilder()
    builder.step("abc")
    plan = register([Group("ab"), Group("c")])
    fetch = ["update_a", "update_b", "update_c"]

    once = optimize(builder.graph, config(plan, op=OP), fetch)
    twice = optimize(once, config(plan, op=OP), fetch)

    assert nodes(twice) == nodes(once)
