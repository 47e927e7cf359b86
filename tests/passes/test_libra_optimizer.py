"""The pass inside TensorFlow's runtime, and offline with all other optimizers, on traced steps.

An engine of one rank runs, so that steps execute; the graphs are what is looked at.
"""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from tests.passes.graphs import (
    Group,
    assert_acyclic,
    config,
    controls,
    data,
    fused,
    joined,
    nodes,
    optimize,
    reasons,
    register,
    report,
    tensor_names,
)
from tests.passes.traced_steps import (
    Model,
    all_reduce,
    assert_is_in_force,
    calling,
    executed,
    thirds,
    under,
)
from tf_libra.runtime import grappler

pytestmark = pytest.mark.usefixtures("one_rank")


def test_the_executed_graph_is_the_plan_and_plans_change_without_retracing(model: Model) -> None:
    step = tf.function(model.step)
    plain = executed(step, *model.args)
    marked = [tensor_names(n) for n in plain.node if n.op == "LibraAllReduce"]
    assert sorted(marked) == sorted([name] for name in model.names)

    first, second = thirds(model.names), [Group(model.names, 4)]
    for groups in (first, second):
        plan = register(groups)
        with under(plan):
            assert_is_in_force(executed(step, *model.args), plan, groups)
        (graph,) = report(plan).values()
        assert [group["num_threads"] for group in graph["groups"]] == [
            group.num_threads for group in groups
        ]
        assert graph["skipped"] == []
    assert step.experimental_get_tracing_count() == 1


def test_graphs_that_a_summary_trace_has_left_are_not_taken_for_the_executed_one(
    model: Model,
) -> None:
    tf.summary.trace_on(graph=True)
    tf.summary.trace_off()
    tf.function(model.step)(*model.args)  # TensorFlow collects it still
    graph = executed(tf.function(model.step), *model.args)
    assert len([n for n in graph.node if n.op == "LibraAllReduce"]) == len(model.names)


def test_the_report_names_the_producers_of_the_executed_graph(model: Model) -> None:
    plan = register(thirds(model.names))
    with under(plan):
        by_name = nodes(executed(tf.function(model.step), *model.args))
    (graph,) = report(plan).values()
    for group in graph["groups"]:
        producers = [tensor["producer"] for tensor in group["tensors"]]
        assert producers == [source.partition(":")[0] for source in data(by_name[group["node"]])]
        assert group["control_inputs"] == controls(by_name[group["node"]])


def test_each_graph_under_a_plan_has_a_report_of_its_own(model: Model) -> None:
    step = tf.function(model.step)
    groups = thirds(model.names)
    plan = register(groups)
    with under(plan):
        step(*model.args)
        step(tf.zeros((3, 8, 8, 3)), tf.zeros((3,), tf.int32))
    assert step.experimental_get_tracing_count() == 2
    first, second = report(plan).values()
    assert first["graph"] != second["graph"]
    for graph in (first, second):
        assert graph["in_force"] is True
        assert graph["left"] == []
        assert [group["group"] for group in graph["groups"]] == [0, 1, 2]


def test_rewrite_that_tensorflow_drops_is_not_reported_as_active(model: Model) -> None:
    plan = register(thirds(model.names))
    proto = config(plan, alone=False)
    # Grappler gives up, and TensorFlow executes the graph as it was traced.
    proto.graph_options.rewrite_options.meta_optimizer_timeout_ms = 1
    with calling(proto):
        graph = executed(tf.function(model.step), *model.args)
    assert not fused(graph)
    (reported,) = report(plan).values()
    assert reported["in_force"] is False
    assert reported["left"] == sorted(model.names)
    assert any("too long" in s["reason"] or "too slow" in s["reason"] for s in reported["skipped"])


def test_digests_are_equal_where_graphs_are_rewritten_alike(model: Model) -> None:
    def digest(plan: str, retrace: bool = False, **options) -> str:
        step = tf.function(model.step)
        args = (tf.zeros((3, 8, 8, 3)), tf.zeros((3,), tf.int32)) if retrace else model.args
        proto = config(plan, alone=False)
        for name, value in options.items():
            setattr(proto.graph_options.rewrite_options, name, value)
        with calling(proto):
            step(*args)
        return grappler.report(SimpleNamespace(short_id=plan)).latest.digest

    groups = thirds(model.names)
    reference = digest(register(groups))
    assert digest(register(groups)) == reference
    assert digest(register(groups), retrace=True) == reference
    assert digest(register([*groups[:2], Group(groups[2].tensors, 3)])) != reference
    assert digest(register([groups[1], groups[0], groups[2]])) != reference
    assert digest(register([Group(model.names)])) != reference
    assert digest(register(groups), meta_optimizer_timeout_ms=1) != reference


def test_after_backward_reaches_the_executed_graph(model: Model) -> None:
    groups = thirds(model.names)
    plan = register(groups, after_backward=True)
    with under(plan):
        graph = executed(tf.function(model.step), *model.args)
    assert_is_in_force(graph, plan, groups)
    by_name = nodes(graph)
    # Grappler replaces the NoOp by edges of its own.
    before: set[str] = set()
    waiting = [f"tf_libra/{plan}/group_0"]
    while waiting:
        for text in by_name[waiting.pop()].input:
            name = text.removeprefix("^").partition(":")[0]
            if name not in before:
                before.add(name)
                waiting.append(name)
    (reported,) = report(plan).values()
    producers = {t["producer"] for group in reported["groups"] for t in group["tensors"]}
    assert len(producers) == len(model.names)
    assert producers <= before


def test_an_unknown_plan_leaves_the_step_as_it_was_traced(model: Model) -> None:
    with under("not there"):
        graph = executed(tf.function(model.step), *model.args)
    assert sum(node.op == "LibraAllReduce" for node in graph.node) == len(model.names)
    assert not fused(graph)
    (name,) = report("not there")
    assert "not registered" in reasons("not there", name)["not there"]


def test_no_unused_copy_of_a_reduced_gradient(model: Model) -> None:
    plan = register(thirds(model.names))
    plain = executed(tf.function(model.step), *model.args)
    marked = {node.name for node in plain.node if node.op == "LibraAllReduce"}
    with under(plan):
        graph = executed(tf.function(model.step), *model.args)
    assert not any(n.op == "Identity" for n in graph.node if n.name in marked)
    readers = {n.op for n in graph.node for text in data(n) if text.startswith("tf_libra/")}
    assert readers == {"Sub", "Square"}  # Adam's


def test_colocation_follows() -> None:
    @tf.function
    def step(x, y):
        a = all_reduce(x + 1.0, "a")
        b = all_reduce(y + 1.0, "b")
        with tf.compat.v1.colocate_with(b.op, ignore_existing=True):
            c = tf.raw_ops.Print(input=a, data=[b])
        return c

    plan = register([Group("ab")])
    with under(plan):
        graph = executed(step, tf.zeros(3), tf.zeros(3))
    by_name = nodes(graph)
    (printed,) = (node for node in graph.node if node.op == "Print")
    for location in printed.attr["_class"].list.s:
        assert location.decode().removeprefix("loc:@") in by_name
    (node,) = (by_name[name] for name in fused(graph))
    assert node.device == printed.device != ""


def test_offline_with_all_other_optimizers(model: Model) -> None:
    graph = tf.function(model.step).get_concrete_function(*model.args).graph
    groups = thirds(model.names)
    plan = register(groups)
    fetch = [tensor.op.name for tensor in graph.outputs] + [op.name for op in graph.control_outputs]
    proto = config(plan, alone=False)
    rewritten = optimize(graph.as_graph_def(), proto, fetch=fetch)
    assert_acyclic(rewritten)
    assert_is_in_force(joined(rewritten), plan, groups)
    assert_is_in_force(joined(optimize(rewritten, proto, fetch=fetch)), plan, groups)


def test_rows_are_read_without_a_copy_of_their_table() -> None:
    table = tf.Variable(tf.reshape(tf.range(12.0), [6, 2]))

    @tf.function
    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            # As Keras' embeddings do: TensorFlow would read a variable's rows by itself.
            rows = tf.gather(tf.convert_to_tensor(table), ids)
            loss = tf.reduce_sum(rows**2)
        gradient = tape.gradient(loss, table)
        values = all_reduce(gradient.values, "a")
        table.scatter_sub(tf.IndexedSlices(values / 4, gradient.indices))
        return rows

    plan = register([Group("a")])
    with under(plan):
        graph = executed(step, tf.constant([4, 1]))
        after = step(tf.constant([4, 1]))
    ops = [node.op for node in graph.node]
    assert ops.count("ResourceGather") == 1
    assert not {"GatherV2", "ReadVariableOp"} & set(ops)
    assert after.numpy().tolist() == [[4.0, 4.5], [1.0, 1.5]]
    assert table.numpy().tolist() == [[0, 1], [0.5, 0.75], [4, 5], [6, 7], [2, 2.25], [10, 11]]
