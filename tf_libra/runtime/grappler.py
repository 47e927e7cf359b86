"""Activates a plan: the pass library gets it once, TensorFlow's calls name it.

The name travels in the config of every function call, which is part of TensorFlow's cache key:
another plan is another instantiation of the same trace, with no retracing.
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
        copy: of the step, where one graph holds several, from 0.
        dtype: of the tensors, as TensorFlow names it.
        tensors: what it reduces, in backward order.
        control_inputs: nodes that must have run before it.
    """

    index: int
    node: str
    num_threads: int
    copy: int
    dtype: str
    tensors: tuple[PlacedTensor, ...]
    control_inputs: tuple[str, ...]

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the tensors."""
        return tuple(tensor.name for tensor in self.tensors)


@dataclass(frozen=True)
class GraphReport:
    """Report of what the pass did to one graph, and what became of it.

    Attributes:
        name: of the graph: the traced function's, which another rank may number otherwise.
        in_force: whether all that the pass wrote is in what TensorFlow executes; None if
            TensorFlow has not got that far.
        groups: the all-reduces that it has written, in the order in which they run.
        left: tensors that are all-reduced as they were traced, by name.
        skipped: what it left alone, with reasons, each in words.
    """

    name: str
    in_force: bool | None
    groups: tuple[PlacedGroup, ...]
    left: tuple[str, ...]
    skipped: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Equal on ranks that execute the same all-reduces in the same order; see `digest`."""
        written = [
            [group.copy, group.index, group.num_threads, group.dtype, group.tensor_names]
            for group in self.groups
        ]
        text = json.dumps([self.in_force, written, self.left])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class RewriteReport:
    """Report of what the pass did under one plan.

    Attributes:
        graphs: those that TensorFlow has instantiated under the plan, the latest last. A step that
            is traced once more, for inputs of another shape, is a graph of its own.
    """

    graphs: tuple[GraphReport, ...] = ()

    @property
    def latest(self) -> GraphReport:
        """The graph that was instantiated last; one without groups where there is none."""
        return self.graphs[-1] if self.graphs else GraphReport("", None, (), (), ())


def register(plan: Plan) -> None:
    """Hands a plan to the pass library, where it stays, read-only, until it is unregistered.

    Each call counts: as many calls of `unregister` undo it.

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
    )
    if code != 0:
        raise ValueError(f"plan: {c.TfLibraLastPlanError().decode(errors='replace')}")


def unregister(plan: Plan) -> None:
    """Undoes one `register`; with the last, the library forgets the plan and its report.

    For plans that no call is going to be made under. TensorFlow keeps what it has instantiated,
    so a known step under a forgotten plan runs as before; but inputs of a new shape would be
    instantiated without fusing: register the plan again before a call may name it.

    Raises:
        ValueError: the plan is not registered.
    """
    c = native.load().c
    if c.TfLibraUnregisterPlan(plan.short_id.encode()) != 0:
        raise ValueError(f"plan: {c.TfLibraLastPlanError().decode(errors='replace')}")


def call_options(plan: Plan, op: str = "LibraAllReduce") -> Any:
    """Function call options under which TensorFlow rewrites graphs by the plan.

    They hold the user's own config, to which the pass is added.

    Args:
        plan: registered.
        op: what the pass writes for a group: "LibraAllReduce" or "HorovodGroupedAllreduce".
    """
    config = tf.compat.v1.ConfigProto()
    config.CopyFrom(tf_internal.eager_context().config)
    rewrite = config.graph_options.rewrite_options
    rewrite.min_graph_nodes = -1
    # It infers shapes, and where it fails Grappler does nothing at all: so with `tf.nn.ctc_loss` of
    # two shapes, whose loops TensorFlow takes for one. What follows infers shapes by itself.
    rewrite.disable_tfg_optimizer = True
    optimizer = rewrite.custom_optimizers.add()
    optimizer.name = OPTIMIZER
    optimizer.parameter_map["plan"].s = plan.short_id.encode()
    optimizer.parameter_map["digest"].s = plan.fingerprint.encode()
    optimizer.parameter_map["op"].s = op.encode()
    return tf_internal.FunctionCallOptions(config_proto=config)


@contextlib.contextmanager
def calling(options: Any) -> Iterator[None]:
    """While it lasts, function calls of this thread are made under `options`."""
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
    if flags and not flags.startswith("-"):  # the name of a file that has them
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
    """Names what the graph that was instantiated last under the plan executes.

    The ranks have equal digests where TensorFlow rewrote their graphs alike: the same tensors of
    each copy of the step in the same groups, in the same order, by the same threads, and the same
    tensors left as they were traced. A rank whose Grappler failed or ran out of time, after which
    TensorFlow executes the graph as it was, differs. What the graphs differ in besides (names of
    functions and nodes, what computes a gradient) does not count.

    To compare: after the first call under a plan, gather it from all ranks
    (`engine.all_gather(grappler.digest(plan))`), and where one differs, raise on every rank,
    with `report(plan).latest.skipped` of the ranks that differ.
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
        )
        for group in graph["groups"]
    )
    skipped = tuple(map(_in_words, graph["skipped"]))
    return GraphReport(graph["graph"], graph["in_force"], groups, tuple(graph["left"]), skipped)


def _in_words(skipped: dict[str, str]) -> str:
    """One entry of the report, such as "tensor 'w0': has no all-reduce"."""
    reason = skipped["reason"]
    subjects = [f"{kind} {name!r}" for kind, name in skipped.items() if kind != "reason"]
    return ": ".join([*subjects, reason])
