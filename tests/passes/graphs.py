"""Hand-made graphs, plans and TensorFlow's own Grappler, for the tests of the pass."""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.python.grappler import cluster as grappler_cluster
from tensorflow.python.grappler import tf_optimizer

from tf_libra.internal import native

_plan_numbers = itertools.count()


@dataclass
class GraphBuilder:
    """Adds nodes to a GraphDef; inputs are written as GraphDefs write them (`a`, `a:1`, `^a`)."""

    graph: graph_pb2.GraphDef = field(default_factory=graph_pb2.GraphDef)

    def node(
        self, op: str, name: str, inputs: Iterable[str] = (), device: str = ""
    ) -> node_def_pb2.NodeDef:
        node = self.graph.node.add(op=op, name=name, device=device)
        node.input.extend(sorted(inputs, key=lambda text: text.startswith("^")))
        return node

    def source(self, name: str, *controls: str, dtype: tf.DType = tf.float32) -> str:
        node = self.node("Const", name, controls)
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0, dtype))
        return name

    def add(self, name: str, *inputs: str, dtype: tf.DType = tf.float32) -> str:
        data = [text for text in inputs if not text.startswith("^")]
        if not data:
            return self.source(name, *inputs, dtype=dtype)
        node = self.node("AddN", name, inputs)
        node.attr["N"].i = len(data)
        node.attr["T"].type = dtype.as_datatype_enum
        return name

    def identity(self, name: str, *inputs: str, dtype: tf.DType = tf.float32) -> str:
        self.node("Identity", name, inputs).attr["T"].type = dtype.as_datatype_enum
        return name

    def no_op(self, name: str, *controls: str) -> str:
        self.node("NoOp", name, controls)
        return name

    def reduce(
        self,
        name: str,
        *inputs: str,
        tensor: str | None = None,
        dtype: tf.DType = tf.float32,
        device: str = "",
        reduction: str | None = None,
    ) -> str:
        """A marked all-reduce; `tensor` defaults to the node's name."""
        node = self.node("LibraAllReduce", name, inputs, device)
        node.attr["N"].i = 1
        node.attr["T"].type = dtype.as_datatype_enum
        node.attr["tensor_names"].list.s.append((tensor or name).encode())
        if reduction is not None:
            node.attr["reduction"].s = reduction.encode()
        return name

    def step(self, tensors: Sequence[str], prefix: str = "", after: Sequence[str] = ()) -> None:
        """A training step: gradient, all-reduce, update; all-reduces chained as they are traced.

        The nodes are called PREFIXgrad_TENSOR, PREFIXTENSOR and PREFIXupdate_TENSOR. `after` is
        control edges into every gradient.
        """
        previous: list[str] = []
        for tensor in tensors:
            self.source(f"{prefix}grad_{tensor}", *after)
            self.reduce(f"{prefix}{tensor}", f"{prefix}grad_{tensor}", *previous, tensor=tensor)
            self.identity(f"{prefix}update_{tensor}", f"{prefix}{tensor}")
            previous = [f"^{prefix}{tensor}"]


@dataclass(frozen=True)
class Group:
    """One group of a plan that is handed to the pass."""

    tensors: Sequence[str]
    num_threads: int = 1
    stream: int = 0
    # Where the part of each tensor begins, -1 for whole ones; none where all are whole.
    part_starts: Sequence[int] = ()


def register(
    groups: Sequence[Group],
    plan: str | None = None,
    digest: str = "digest",
    after_backward: bool = False,
    wire_dtype: str = "",
    gathers: Sequence[Group] = (),
) -> str:
    """Registers a plan, under a name of its own unless `plan` is given, and returns its id."""
    plan = f"plan-{next(_plan_numbers)}" if plan is None else plan
    c = native.load().c
    code = c.TfLibraRegisterPlan(
        plan.encode(),
        digest.encode(),
        len(groups),
        native.int_array([len(group.tensors) for group in groups]),
        native.int_array([group.num_threads for group in groups]),
        native.int_array([group.stream for group in groups]),
        native.text_array([name for group in groups for name in group.tensors]),
        native.long_array(
            [
                start
                for group in groups
                for start in (group.part_starts or [-1] * len(group.tensors))
            ]
        ),
        int(after_backward),
        wire_dtype.encode(),
        len(gathers),
        native.int_array([len(group.tensors) for group in gathers]),
        native.int_array([group.num_threads for group in gathers]),
        native.text_array([name for group in gathers for name in group.tensors]),
    )
    if code != 0:
        raise ValueError(c.TfLibraLastPlanError().decode())
    return plan


def report(plan: str) -> dict:
    """Returns the pass's report of each graph, the latest last."""
    document = json.loads(native.load().c.TfLibraRewriteReport(plan.encode()))
    assert document["plan"] == plan
    graphs = sorted(document["graphs"], key=lambda graph: graph.pop("serial"))
    return {graph["graph"]: graph for graph in graphs}


def reasons(plan: str, graph: str = "graph") -> dict[str, str]:
    """Returns the items that were left out of `graph`, and the reasons."""
    found = {}
    for skipped in report(plan)[graph]["skipped"]:
        (name,) = (skipped[key] for key in ("node", "tensor", "plan") if key in skipped)
        found[name] = "; ".join(filter(None, (found.get(name), skipped["reason"])))
    return found


def config(
    plan: str, digest: str = "digest", op: str = "LibraAllReduce", alone: bool = True
) -> config_pb2.ConfigProto:
    """A config that names the plan; `alone` leaves all other optimizers out."""
    proto = config_pb2.ConfigProto()
    rewrite = proto.graph_options.rewrite_options
    rewrite.min_graph_nodes = -1
    rewrite.fail_on_optimizer_errors = True
    if alone:
        rewrite.optimizers.append("tf_libra")
    optimizer = rewrite.custom_optimizers.add(name="tf_libra")
    optimizer.parameter_map["plan"].s = plan.encode()
    optimizer.parameter_map["digest"].s = digest.encode()
    optimizer.parameter_map["op"].s = op.encode()
    return proto


def optimize(
    graph: graph_pb2.GraphDef,
    proto: config_pb2.ConfigProto,
    fetch: Sequence[str] = (),
    feed: Sequence[str] = (),
    targets: Sequence[str] = (),
) -> graph_pb2.GraphDef:
    """Runs Grappler on `graph`; nodes that nothing consumes are fetched unless `fetch` says.

    `targets` are to be kept, too, though no node reads them.
    """
    consumed = {node_name(text) for node in graph.node for text in node.input}
    fetch = fetch or [node.name for node in graph.node if node.name not in consumed]
    meta = meta_graph_pb2.MetaGraphDef(graph_def=graph)
    meta.collection_def["train_op"].node_list.value.extend(fetch)
    if targets:
        meta.collection_def["table_initializer"].node_list.value.extend(targets)
    for name in feed:
        info = meta.signature_def["serving_default"].inputs[name]
        info.name, info.dtype = f"{name}:0", tf.float32.as_datatype_enum
        info.tensor_shape.SetInParent()
    with tf_optimizer._OPTIMIZE_GRAPH_CLUSTER_LOCK:
        cluster = grappler_cluster.Cluster(disable_detailed_stats=True)
        try:
            return tf_optimizer.OptimizeGraph(
                proto, meta, verbose=False, graph_id=b"graph", cluster=cluster
            )
        finally:
            cluster.Shutdown()


def fuse(graph: graph_pb2.GraphDef, plan: str, **keep: Sequence[str]) -> graph_pb2.GraphDef:
    """Runs the pass alone, and reads what it starts apart as one."""
    return joined(fuse_apart(graph, plan, **keep))


def fuse_apart(graph: graph_pb2.GraphDef, plan: str, **keep: Sequence[str]) -> graph_pb2.GraphDef:
    """Runs the pass alone."""
    return optimize(graph, config(plan), **keep)


def joined(graph: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """The graph with each start of an all-reduce and the wait for its end as one all-reduce."""
    starts = {
        node.name: node_name(node.input[0])
        for node in graph.node
        if node.op == "LibraAllReduceWait"
    }
    whole = graph_pb2.GraphDef(versions=graph.versions, library=graph.library)
    for node in graph.node:
        if node.name in starts:
            continue
        copied = whole.node.add()
        copied.CopyFrom(node)
        if node.op == "LibraAllReduceStart":
            copied.op = "LibraAllReduce"
        del copied.input[:]
        for text in node.input:
            name = node_name(text)
            copied.input.append(text.replace(name, starts.get(name, name), 1))
    return whole


def node_name(text: str) -> str:
    return text.removeprefix("^").partition(":")[0]


def nodes(graph: graph_pb2.GraphDef) -> dict[str, node_def_pb2.NodeDef]:
    by_name = {node.name: node for node in graph.node}
    assert len(by_name) == len(graph.node)
    return by_name


def tensor_names(node: node_def_pb2.NodeDef) -> list[str]:
    if "tensor_names" not in node.attr:  # reading it would add it
        return []
    return [name.decode() for name in node.attr["tensor_names"].list.s]


def fused(graph: graph_pb2.GraphDef) -> dict[str, list[str]]:
    """Name and tensors of each all-reduce that the pass has written, by name."""
    return {
        node.name: tensor_names(node)
        for node in sorted(graph.node, key=lambda node: node.name)
        if node.op in ("LibraAllReduce", "LibraAllReduceStart") and node.attr["plan"].s
    }


def controls(node: node_def_pb2.NodeDef) -> list[str]:
    return [text[1:] for text in node.input if text.startswith("^")]


def data(node: node_def_pb2.NodeDef) -> list[str]:
    return [text.removesuffix(":0") for text in node.input if not text.startswith("^")]


def assert_acyclic(graph: graph_pb2.GraphDef) -> None:
    """Every input exists, and no node comes before itself."""
    waiting = {n.name: {node_name(text) for text in n.input} for n in graph.node}
    for inputs in waiting.values():
        assert inputs <= waiting.keys()
    done: set[str] = set()
    while waiting:
        ready = {name for name, inputs in waiting.items() if inputs <= done}
        assert ready, f"a cycle among {sorted(waiting)}"
        done |= ready
        waiting = {name: inputs for name, inputs in waiting.items() if name not in ready}
