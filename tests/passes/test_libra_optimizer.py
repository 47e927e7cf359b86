"""The pass inside TensorFlow's runtime, and offline with all other optimizers, on traced steps.

An engine of one rank runs, so that steps execute; the graphs are what is looked at.
"""

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context as tf_context

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
from tf_libra.backends import engine
from tf_libra.internal import native
from tf_libra.profiling.executed_graph import GraphCapture
from tf_libra.runtime import grappler


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    address = engine.listen("127.0.0.1")
    running = engine.connect(
        rank=0,
        addresses=[address],
        secret=bytes(engine.SECRET_BYTES),
        num_lanes=4,
        timeout_seconds=60.0,
        stall_warning_seconds=30.0,
    )
    yield
    running.close()


@contextmanager
def under(plan: str, **kwargs) -> Iterator[None]:
    """Calls within are made under a config that names the plan."""
    with calling(config(plan, alone=False, **kwargs)):
        yield


def calling(proto: config_pb2.ConfigProto) -> AbstractContextManager[None]:
    return grappler.calling(tf_context.FunctionCallOptions(config_proto=proto))


def executed(function, *args) -> graph_pb2.GraphDef:
    """Calls `function`, and returns the graph that TensorFlow made to execute it."""
    with GraphCapture() as capture:  # without graphs that earlier tests have left
        function(*args)
    assert not capture.unavailable
    graphs = map(joined, capture.graphs)
    (graph,) = (g for g in graphs if any(n.op == "LibraAllReduce" for n in g.node))
    return graph


def all_reduce(gradient: tf.Tensor, name: str) -> tf.Tensor:
    return native.load().ops.libra_all_reduce(tensors=[gradient], tensor_names=[name])[0]


class Model:
    """A small convolutional network with a training step of its own."""

    def __init__(self) -> None:
        layers = tf.keras.layers
        self.model = tf.keras.Sequential(
            [
                layers.Input((8, 8, 3)),
                layers.Conv2D(4, 3, use_bias=False),  # oneDNN would merge BiasAddGrad away
                layers.BatchNormalization(),
                layers.Flatten(),
                layers.Dense(8, activation="relu"),
                layers.Dense(4),
            ]
        )
        self.optimizer = tf.keras.optimizers.Adam()
        self.optimizer.build(self.model.trainable_variables)
        paths = [variable.path for variable in self.model.trainable_variables]
        self.names = paths[::-1]  # backward order
        self.args = (tf.zeros((2, 8, 8, 3)), tf.zeros((2,), tf.int32))

    def step(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            )
        gradients = tape.gradient(loss, variables)
        reduced = [
            all_reduce(gradient, variable.path)
            for gradient, variable in reversed(list(zip(gradients, variables, strict=True)))
        ]
        self.optimizer.apply_gradients(zip(reduced[::-1], variables, strict=True))
        return loss


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


def thirds(names: list[str]) -> list[Group]:
    return [Group(names[:2], 1), Group(names[2:5], 2), Group(names[5:], 1)]


def assert_is_in_force(graph: graph_pb2.GraphDef, plan: str, groups: list[Group]) -> None:
    """The executed graph holds the plan's groups, their threads and the edges between them."""
    by_name = nodes(graph)
    names = [f"tf_libra/{plan}/group_{k}" for k in range(len(groups))]
    assert fused(graph) == {
        name: list(group.tensors) for name, group in zip(names, groups, strict=True)
    }
    for k, group in enumerate(groups):
        assert by_name[names[k]].attr["num_threads"].i == group.num_threads
        assert k == 0 or names[k - 1] in controls(by_name[names[k]])
    assert sum(node.op == "LibraAllReduce" for node in graph.node) == len(groups)


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


def test_what_tensorflow_drops_is_not_reported_as_in_force(model: Model) -> None:
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


def test_nested_functions_are_inlined_before(model: Model) -> None:
    inner = tf.function(model.step)
    plan = register(thirds(model.names))
    with under(plan):
        graph = executed(tf.function(lambda *args: inner(*args) + 1.0), *model.args)
    assert_is_in_force(graph, plan, thirds(model.names))


def test_steps_unrolled_in_one_graph_stay_apart(model: Model) -> None:
    @tf.function
    def two_steps(*args):
        model.step(*args)
        return model.step(*args)

    groups = thirds(model.names)
    plan = register(groups)
    with under(plan):
        graph = executed(two_steps, *model.args)
    assert_acyclic(graph)
    by_name = nodes(graph)
    assert len(fused(graph)) == 2 * len(groups)
    for k, group in enumerate(groups):
        for copy in ("", "_copy_1"):
            node = by_name[f"tf_libra/{plan}/group_{k}{copy}"]
            assert tensor_names(node) == list(group.tensors)
    first = {source for k in range(3) for source in data(by_name[f"tf_libra/{plan}/group_{k}"])}
    second = {
        source for k in range(3) for source in data(by_name[f"tf_libra/{plan}/group_{k}_copy_1"])
    }
    assert not first & second


def test_a_step_in_a_loop_and_a_branch_is_fused_inside(model: Model) -> None:
    @tf.function
    def steps(images, labels):
        loss = 0.0
        for i in tf.range(2):
            if i < 5:
                loss = model.step(images, labels)
        return loss

    groups = thirds(model.names)
    plan = register(groups)
    with under(plan):
        graph = executed(steps, *model.args)
    assert_is_in_force(graph, plan, groups)
    (reported,) = report(plan).values()
    assert reported["skipped"] == []


def test_the_two_branches_of_a_conditional_are_copies(model: Model) -> None:
    @tf.function
    def either(images, labels):
        if tf.reduce_sum(images) > 0.0:
            return model.step(images, labels)
        return model.step(images + 1.0, labels)

    plan = register([Group(model.names, 2)])
    with under(plan):
        graph = executed(either, *model.args)
    assert sorted(fused(graph)) == [f"tf_libra/{plan}/group_0", f"tf_libra/{plan}/group_0_copy_1"]
    one, other = (nodes(graph)[name] for name in fused(graph))
    assert not set(data(one)) & set(data(other))
    assert one.name not in controls(other)
    assert other.name not in controls(one)


def must_wait(graph: graph_pb2.GraphDef, earlier: str, later: str) -> bool:
    """Returns whether `later` runs only after `earlier`, of those branches that run."""
    by_name = nodes(graph)
    before: set[str] = set()
    waiting = [later]
    while waiting:
        for text in by_name[waiting.pop()].input:
            name = text.removeprefix("^").partition(":")[0]
            if name not in before:
                before.add(name)
                waiting.append(name)
    return earlier in before


@pytest.mark.parametrize("where", ["behind", "between", "before"])
def test_an_all_reduce_in_a_branch_is_executed_there(where: str) -> None:
    def branch(x, y):
        if tf.reduce_sum(x) > 0.0:
            y = all_reduce(y + 1.0, "b")
        return y

    @tf.function
    def mixed(x):
        y = x
        if where == "before":
            y = branch(x, y)
        a, c = all_reduce(y * 2.0, "a"), all_reduce(y * 3.0, "c")
        if where == "between":
            y = branch(x, a)
        d, e = all_reduce(y * 4.0, "d"), all_reduce(y * 5.0, "e")
        if where == "behind":
            y = branch(x, d)
        return a + c + d + e + y

    plan = register([Group("acb"), Group("de")])
    with under(plan):
        graph = executed(mixed, tf.ones(3))
        rewritten = [mixed(sign * tf.ones(3)) for sign in (1.0, -1.0)]
    for sign, value in zip((1.0, -1.0), rewritten, strict=True):
        tf.debugging.assert_equal(value, mixed(sign * tf.ones(3)))
    assert sorted(fused(graph).values()) == [["a", "c"], ["b"], ["d", "e"]]
    (inside,) = (n.name for n in graph.node if tensor_names(n) == ["b"])
    (reported,) = report(plan).values()
    assert reported["skipped"] == reported["left"] == []
    groups = [f"tf_libra/{plan}/group_{k}" for k in (0, 1)]
    order = {
        "before": [inside, *groups],
        "between": [groups[0], inside, groups[1]],
        "behind": [*groups, inside],
    }[where]
    for earlier, later in itertools.pairwise(order):
        assert must_wait(graph, earlier, later)


def test_a_metric_outside_of_a_step_in_a_branch_stays_out_alone(model: Model) -> None:
    @tf.function
    def step(images, labels):
        seen = all_reduce(tf.reduce_sum(images), "images")
        loss = 0.0
        if tf.reduce_sum(images) < 1.0:
            loss = model.step(images, labels)
        return loss + all_reduce(seen + loss, "loss")

    groups = thirds(model.names)
    plan = register(groups)
    with under(plan):
        graph = executed(step, *model.args)
    for k, group in enumerate(groups):
        node = nodes(graph)[f"tf_libra/{plan}/group_{k}"]
        assert tensor_names(node) == list(group.tensors)
    first, last = (
        next(n.name for n in graph.node if tensor_names(n) == [name]) for name in ("images", "loss")
    )
    # Which of them come before the groups is ours to choose; but all are in one order.
    order = [first, f"tf_libra/{plan}/group_0", f"tf_libra/{plan}/group_2", last]
    for one, other in itertools.combinations(order, 2):
        assert must_wait(graph, one, other) != must_wait(graph, other, one)


def test_steps_with_a_branch_each_are_all_planned(model: Model) -> None:
    def sometimes(images, labels):
        if tf.reduce_sum(images) < 1.0:
            model.step(images, labels)

    @tf.function
    def two_steps(images, labels):
        sometimes(images, labels)
        sometimes(images, labels)

    groups = thirds(model.names)
    plan = register(groups)
    with under(plan):
        graph = executed(two_steps, *model.args)
    assert len(fused(graph)) == 2 * len(groups)
    assert must_wait(graph, f"tf_libra/{plan}/group_2", f"tf_libra/{plan}/group_0_copy_1")


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
