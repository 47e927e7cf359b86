"""The pass inside TensorFlow's runtime, on steps with functions, loops and branches.

An engine of one rank runs, so that steps execute; the graphs are what is looked at.
"""

import itertools

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.passes.graphs import (
    Group,
    assert_acyclic,
    controls,
    data,
    fused,
    nodes,
    register,
    report,
    tensor_names,
)
from tests.passes.traced_steps import Model, all_reduce, assert_is_in_force, executed, thirds, under

pytestmark = pytest.mark.usefixtures("one_rank")


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
    first, other = (nodes(graph)[name] for name in fused(graph))
    assert not set(data(first)) & set(data(other))
    assert first.name not in controls(other)
    assert other.name not in controls(first)


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
    for earlier, other in itertools.combinations(order, 2):
        assert must_wait(graph, earlier, other) != must_wait(graph, other, earlier)


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
