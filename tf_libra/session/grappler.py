"""Puts a plan into force: the pass library gets it once, TensorFlow's calls name it.

The name travels in the config of every function call, which is part of TensorFlow's cache key:
another plan is another instantiation of the same trace, with no retracing.
"""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context as tf_context

from tf_libra.backends import library
from tf_libra.model.plan import Plan

OPTIMIZER = "tf_libra"


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor of a group as the pass found it in the graph.

    Attributes:
        name: of the tensor, as in the plan.
        producer: node that computes it, as TensorFlow's profiler names it.
    """

    name: str
    producer: str


@dataclass(frozen=True)
class PlacedGroup:
    """One all-reduce that the pass has written.

    Attributes:
        index: the group's index in the plan.
        node: name of the node.
        num_threads: its thread count.
        tensors: what it reduces, in backward order.
        control_inputs: nodes that must have run before it.
    """

    index: int
    node: str
    num_threads: int
    tensors: tuple[PlacedTensor, ...]
    control_inputs: tuple[str, ...]


@dataclass(frozen=True)
class RewriteReport:
    """What the pass did under one plan, in the graphs it has seen so far.

    Attributes:
        groups: the all-reduces it has written.
        skipped: what it left alone, with reasons.
    """

    groups: tuple[PlacedGroup, ...]
    skipped: tuple[str, ...]


def register(plan: Plan) -> None:
    """Hands a plan to the pass library, where it stays, read-only.

    Raises:
        ValueError: the library refuses it.
    """
    c = library.load().c
    sizes = [group.stop - group.start for group in plan.groups]
    code = c.TfLibraRegisterPlan(
        plan.short_id.encode(),
        plan.fingerprint.encode(),
        len(plan.groups),
        library.int_array(sizes),
        library.int_array([group.num_threads for group in plan.groups]),
        library.int_array([group.stream for group in plan.groups]),
        library.text_array(plan.tensor_names),
        int(plan.after_backward),
    )
    if code != 0:
        raise ValueError(f"plan: {c.TfLibraLastPlanError().decode(errors='replace')}")


def call_options(plan: Plan, op: str = "LibraAllReduce") -> Any:
    """Function call options under which TensorFlow rewrites graphs by the plan.

    They hold the user's own config, to which the pass is added.

    Args:
        plan: registered.
        op: what the pass writes for a group: "LibraAllReduce" or "HorovodGroupedAllreduce".
    """
    config = config_pb2.ConfigProto()
    config.CopyFrom(tf_context.context().config)
    rewrite = config.graph_options.rewrite_options
    rewrite.min_graph_nodes = -1
    optimizer = rewrite.custom_optimizers.add()
    optimizer.name = OPTIMIZER
    optimizer.parameter_map["plan"].s = plan.short_id.encode()
    optimizer.parameter_map["digest"].s = plan.fingerprint.encode()
    optimizer.parameter_map["op"].s = op.encode()
    return tf_context.FunctionCallOptions(config_proto=config)


@contextlib.contextmanager
def calling(options: Any) -> Iterator[None]:
    """While it lasts, function calls of this thread are made under `options`."""
    context = tf_context.context()
    previous = context.function_call_options
    context.function_call_options = options
    try:
        yield
    finally:
        context.function_call_options = previous


def is_switched_off() -> bool:
    """Whether the user has switched Grappler off, so that no plan can take effect."""
    return bool(tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer"))


def report(plan: Plan) -> RewriteReport:
    """What the pass has done under this plan so far; empty if it has seen no graph."""
    text = library.load().c.TfLibraRewriteReport(plan.short_id.encode())
    document: dict[str, Any] = json.loads(text or b"{}")
    groups, skipped = [], []
    for graph in document.get("graphs", ()):
        skipped += [json.dumps(one, sort_keys=True) for one in graph["skipped"]]
        for group in graph["groups"]:
            tensors = tuple(PlacedTensor(t["name"], t["producer"]) for t in group["tensors"])
            groups.append(
                PlacedGroup(
                    group["group"],
                    group["node"],
                    group["num_threads"],
                    tensors,
                    tuple(group["control_inputs"]),
                )
            )
    return RewriteReport(tuple(groups), tuple(skipped))
