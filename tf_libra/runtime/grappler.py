"""Interface to the Grappler pass: plans are registered once, and function calls name them.

The name is part of the config of a function call, and so of TensorFlow's cache key: another plan is
another instantiation of the same trace, without retracing.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from tf_libra.internal import native, tf_internal
from tf_libra.specs.plan import Plan

OPTIMIZER = "tf_libra"


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor of a group as the pass found it in the graph.

    Attributes:
        name: name of the tensor, as in the plan.
        producer: name, in TensorFlow's profiler, of the node that computes the tensor.
    """

    name: str
    producer: str


@dataclass(frozen=True)
class PlacedGroup:
    """One all-reduce that the pass has written.

    Attributes:
        index: the group's index in the plan.
        node: name of the node.
        num_threads: thread count of the group.
        copy: number of the step, from 0, if the graph holds several steps.
        dtype: TensorFlow's name for the tensors' dtype.
        tensors: the tensors, in backward order.
        control_inputs: nodes that run before it.
        is_sharded: whether each rank updates only the parts that it owns.
        whole: why every rank updates all, although sharding was requested; else empty.
    """

    index: int
    node: str
    num_threads: int
    copy: int
    dtype: str
    tensors: tuple[PlacedTensor, ...]
    control_inputs: tuple[str, ...]
    is_sharded: bool = False
    whole: str = ""

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the tensors."""
        return tuple(tensor.name for tensor in self.tensors)


@dataclass(frozen=True)
class GraphReport:
    """Report of the pass on one graph.

    Attributes:
        name: name of the traced function, which another rank may number differently.
        in_force: whether TensorFlow executes all that the pass has written; None before the graph
            is instantiated.
        groups: all-reduces that the pass has written, in the order in which they run.
        left: names of tensors that are all-reduced as traced.
        skipped: texts about what the pass has left unchanged, with reasons.
        exchanged: names of the sums and weights that sharded updates exchange, in order.
        num_fused_updates: number of updates of owned parts that are one op each.
    """

    name: str
    in_force: bool | None
    groups: tuple[PlacedGroup, ...]
    left: tuple[str, ...]
    skipped: tuple[str, ...]
    exchanged: tuple[str, ...] = ()
    num_fused_updates: int = 0

    @property
    def digest(self) -> str:
        """Digest, equal on ranks that execute the same all-reduces in the same order."""
        written = [
            [
                group.copy,
                group.index,
                group.num_threads,
                group.dtype,
                group.tensor_names,
                group.is_sharded,
            ]
            for group in self.groups
        ]
        text = json.dumps([self.in_force, written, self.exchanged, self.left])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class RewriteReport:
    """Report of the pass under one plan.

    Attributes:
        graphs: graphs that TensorFlow has instantiated under the plan, the latest last. Each trace
            of a step, for inputs of another shape, is another graph.
    """

    graphs: tuple[GraphReport, ...] = ()

    @property
    def latest(self) -> GraphReport:
        """Latest graph; an empty report if there is none."""
        return self.graphs[-1] if self.graphs else GraphReport("", None, (), (), ())


def register(plan: Plan) -> None:
    """Registers a plan with the pass library, which keeps it until it is unregistered.

    Registrations are counted: as many calls of `unregister` undo them.

    Raises:
        ValueError: the library rejects it.
    """
    c = native.load().c
    parts = [plan.parts(index) for index in range(len(plan.groups))]
    each = [part for group in parts for part in group]
    whole = [part.num_bytes == plan.num_bytes[part.tensor] for part in each]
    code = c.TfLibraRegisterPlan(
        plan.short_id.encode(),
        plan.fingerprint.encode(),
        len(plan.groups),
        native.int_array([len(group) for group in parts]),
        native.int_array([group.num_threads for group in plan.groups]),
        native.int_array([group.stream for group in plan.groups]),
        native.text_array([plan.tensor_names[part.tensor] for part in each]),
        native.long_array(
            [
                -1 if all_of_it else part.start_byte
                for part, all_of_it in zip(each, whole, strict=True)
            ]
        ),
        int(plan.after_backward),
        (plan.wire_dtype or "").encode(),
        len(plan.gathers),
        native.int_array([gather.stop - gather.start for gather in plan.gathers]),
        native.int_array([gather.num_threads for gather in plan.gathers]),
        native.text_array(
            [name for g in plan.gathers for name in plan.tensor_names[g.start : g.stop][::-1]]
        ),
    )
    if code != 0:
        raise ValueError(f"plan: {c.TfLibraLastPlanError().decode(errors='replace')}")


def unregister(plan: Plan) -> None:
    """Undoes one `register`; the last one deletes the plan and its report.

    TensorFlow keeps instantiated graphs, so a known step would still run under a deleted plan. But
    inputs of a new shape would be instantiated without fusion: register the plan again first.

    Raises:
        ValueError: the plan is not registered.
    """
    c = native.load().c
    if c.TfLibraUnregisterPlan(plan.short_id.encode()) != 0:
        raise ValueError(f"plan: {c.TfLibraLastPlanError().decode(errors='replace')}")


def call_options(plan: Plan, op: str = "LibraAllReduce", sharding: str = "") -> Any:
    """Returns function call options under which TensorFlow rewrites graphs by the plan.

    They are the user's config with the pass added.

    Args:
        plan: a registered plan.
        op: op that the pass writes for a group: "LibraAllReduce" or "HorovodGroupedAllreduce".
        sharding: id of a registered sharding of updates; empty for none.
    """
    config = tf.compat.v1.ConfigProto()
    config.CopyFrom(tf_internal.eager_context().config)
    rewrite = config.graph_options.rewrite_options
    rewrite.min_graph_nodes = -1
    # The optimizer infers shapes. If that fails, Grappler does nothing at all, as for
    # `tf.nn.ctc_loss` of two shapes, whose loops TensorFlow mistakes for one. Later passes infer
    # shapes themselves.
    rewrite.disable_tfg_optimizer = True
    optimizer = rewrite.custom_optimizers.add()
    optimizer.name = OPTIMIZER
    optimizer.parameter_map["plan"].s = plan.short_id.encode()
    optimizer.parameter_map["digest"].s = plan.fingerprint.encode()
    optimizer.parameter_map["op"].s = op.encode()
    if sharding:
        optimizer.parameter_map["sharding"].s = sharding.encode()
    return tf_internal.FunctionCallOptions(config_proto=config)


@contextlib.contextmanager
def calling(options: Any) -> Iterator[None]:
    """Makes function calls of this thread under `options`, while the context lasts."""
    context = tf_internal.eager_context()
    previous = context.function_call_options
    context.function_call_options = options
    try:
        yield
    finally:
        context.function_call_options = previous


def is_switched_off() -> bool:
    """Returns whether the user has switched Grappler off, so that no plan can take effect."""
    return bool(tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer"))


def is_clustered_by_xla() -> bool:
    """Returns whether the user has enabled TensorFlow's auto-clustering, by options or flags."""
    flags = os.environ.get("TF_XLA_FLAGS", "")
    if flags and not flags.startswith("-"):  # name of a file with the flags
        flags = Path(flags).read_text() if Path(flags).is_file() else ""
    flag = re.search(r"--tf_xla_auto_jit[= ](\S+)", flags)
    return bool(tf.config.optimizer.get_jit()) or bool(flag and flag[1] not in ("0", "-1"))


def report(plan: Plan) -> RewriteReport:
    """Returns what the pass has done under this plan so far; empty if it has seen no graph."""
    c = native.load().c
    text = c.TfLibraRewriteReport(plan.short_id.encode())
    if text is None:
        raise MemoryError(c.TfLibraLastPlanError().decode(errors="replace"))
    graphs = sorted(json.loads(text)["graphs"], key=lambda graph: graph["serial"])
    return RewriteReport(tuple(_graph_report(graph) for graph in graphs))


def digest(plan: Plan) -> str:
    """Returns a digest of the all-reduces in the latest graph under the plan.

    Ranks have equal digests if TensorFlow rewrote their graphs alike: the same tensors of each step
    in the same groups, in the same order, by the same threads, and the same tensors as traced. The
    digest differs on a rank whose Grappler failed or ran out of time, so that TensorFlow executes
    the traced graph. Names of functions and nodes, and producers of gradients, are not compared.
    """
    return report(plan).latest.digest


def _graph_report(graph: dict[str, Any]) -> GraphReport:
    groups = tuple(
        PlacedGroup(
            index=group["group"],
            node=group["node"],
            num_threads=group["num_threads"],
            copy=group["copy"],
            dtype=group["dtype"],
            tensors=tuple(PlacedTensor(t["name"], t["producer"]) for t in group["tensors"]),
            control_inputs=tuple(group["control_inputs"]),
            is_sharded=group["is_sharded"],
            whole=group["whole"],
        )
        for group in graph["groups"]
    )
    skipped = tuple(map(_in_words, graph["skipped"]))
    return GraphReport(
        graph["graph"],
        graph["in_force"],
        groups,
        tuple(graph["left"]),
        skipped,
        tuple(graph["exchanged"]),
        graph["fused_updates"],
    )


def _in_words(skipped: dict[str, str]) -> str:
    """Returns one entry of the report as text, such as "tensor 'w0': has no all-reduce"."""
    reason = skipped["reason"]
    subjects = [f"{kind} {name!r}" for kind, name in skipped.items() if kind != "reason"]
    return ": ".join([*subjects, reason])
