"""Measures the cost of keeping backward order: control edges, and a longer critical path.

    python -m benchmarks.pinning [--networks resnet50,bert] [--markdown FILE]

Training steps are traced, not run, and rewritten by the pass alone, so the figures are the same on
every machine. Work is counted in floating-point operations of convolutions and matrix products; any
other op counts one per element that it puts out. The critical path is the longest one that ends in
a gradient, in nodes and in work: how long backward computation takes on as many cores as can help.

Rows: the step as it was traced; a plan of ten groups of equal bytes; one gradient per group; the
plan that a profile is measured with; and, for comparison, a total order, in which whatever a
gradient needs beyond the earlier ones waits for all of them.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf
from absl import app, flags
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.python.grappler import tf_optimizer

from tf_libra.internal import native

_PRODUCTS = ("MatMul", "BatchMatMulV2", "BatchMatMulV3")
_GROUPS = 10


def resnet50() -> tuple[tf.keras.Model, list[tf.TensorSpec]]:
    return tf.keras.applications.ResNet50(weights=None), [tf.TensorSpec((32, 224, 224, 3))]


def bert() -> tuple[tf.keras.Model, list[tf.TensorSpec]]:
    """Twelve encoder blocks of BERT-Base and its head over a vocabulary of 30,522."""
    layers = tf.keras.layers
    tokens = layers.Input((128,), dtype="int32")
    x = layers.LayerNormalization()(layers.Embedding(30522, 768)(tokens))
    for _ in range(12):
        attended = layers.MultiHeadAttention(12, 64)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, attended]))
        y = layers.Dense(768)(layers.Dense(3072, activation="gelu")(x))
        x = layers.LayerNormalization()(layers.Add()([x, y]))
    model = tf.keras.Model(tokens, layers.Dense(30522)(x))
    return model, [tf.TensorSpec((8, 128), tf.int32)]


BUILDERS = {"resnet50": resnet50, "bert": bert}


@dataclasses.dataclass(frozen=True)
class Step:
    """A traced step: its graph with shapes, and its gradients in backward order."""

    graph: graph_pb2.GraphDef
    fetches: Sequence[str]
    names: Sequence[str]
    num_bytes: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Row:
    what: str
    edges: int
    joins: int
    nodes: int  # on the critical path
    work: float


def trace(build: Callable[[], tuple[tf.keras.Model, list[tf.TensorSpec]]]) -> Step:
    model, specs = build()
    variables = model.trainable_variables
    names = [f"{i}" for i in range(len(variables))]
    ops = native.load().ops

    @tf.function
    def step(inputs: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs, training=True)))
        pairs = zip(names, variables, tape.gradient(loss, variables), strict=True)
        for name, variable, gradient in reversed(list(pairs)):
            gradient = tf.convert_to_tensor(gradient)
            (reduced,) = ops.libra_all_reduce(tensors=[gradient], ends=[], tensor_names=[name])
            variable.assign_sub(0.1 * reduced)

    traced = step.get_concrete_function(*specs).graph
    return Step(
        graph=traced.as_graph_def(add_shapes=True),
        fetches=[op.name for op in traced.control_outputs],
        names=names[::-1],
        num_bytes=[4 * v.shape.num_elements() for v in variables][::-1],
    )


def rewrite(
    step: Step, groups: Sequence[Sequence[str]], after_backward: bool
) -> graph_pb2.GraphDef:
    """The step as the pass alone writes it."""
    c = native.load().c
    plan = f"{len(groups)} groups{' measured' if after_backward else ''}"
    code = c.TfLibraRegisterPlan(
        plan.encode(),
        b"digest",
        len(groups),
        native.int_array([len(group) for group in groups]),
        native.int_array([1] * len(groups)),
        native.int_array([0] * len(groups)),
        native.text_array([name for group in groups for name in group]),
        native.long_array([-1] * sum(map(len, groups))),
        int(after_backward),
        b"",
        0,
        native.int_array([]),
        native.int_array([]),
        native.text_array([]),
    )
    if code:
        raise ValueError(c.TfLibraLastPlanError().decode())
    proto = config_pb2.ConfigProto()
    options = proto.graph_options.rewrite_options
    options.min_graph_nodes = -1
    options.optimizers.append("tf_libra")
    custom = options.custom_optimizers.add(name="tf_libra")
    for key, value in (("plan", plan), ("digest", "digest"), ("op", "LibraAllReduce")):
        custom.parameter_map[key].s = value.encode()
    meta = meta_graph_pb2.MetaGraphDef(graph_def=step.graph)
    meta.collection_def["train_op"].node_list.value.extend(step.fetches)
    return tf_optimizer.OptimizeGraph(proto, meta, verbose=False)


def source(text: str) -> str:
    return text.removeprefix("^").partition(":")[0]


def elements(node: node_def_pb2.NodeDef, output: int = 0) -> int:
    shapes = node.attr["_output_shapes"].list.shape
    if output >= len(shapes) or shapes[output].unknown_rank:
        return 1
    return math.prod(max(dim.size, 1) for dim in shapes[output].dim)


def dims(node: node_def_pb2.NodeDef) -> list[int]:
    shapes = node.attr["_output_shapes"].list.shape
    return [max(dim.size, 1) for dim in shapes[0].dim] if shapes else [1]


def work(node: node_def_pb2.NodeDef, by_name: dict[str, node_def_pb2.NodeDef]) -> float:
    """Floating-point operations of one node, as the module says."""
    inputs = [by_name[source(text)] for text in node.input if not text.startswith("^")]
    if node.op in _PRODUCTS and len(inputs) == 2:
        # Each matrix has two of the product's three dimensions, and all have the batch's.
        total = float(elements(inputs[0])) * elements(inputs[1]) * elements(node)
        return 2.0 * math.sqrt(total / math.prod(dims(node)[:-2]))
    if node.op == "Einsum" and len(inputs) == 2:
        left, right = node.attr["equation"].s.decode().partition("->")[0].split(",")
        sizes = dict(zip(left + right, dims(inputs[0]) + dims(inputs[1]), strict=True))
        return 2.0 * math.prod(sizes.values())
    if node.op == "Conv2D":
        return 2.0 * elements(node) * elements(inputs[1]) / dims(inputs[1])[-1]
    if node.op == "Conv2DBackpropInput":
        return 2.0 * elements(inputs[2]) * elements(inputs[1]) / dims(inputs[1])[-1]
    if node.op == "Conv2DBackpropFilter":
        return 2.0 * elements(inputs[2]) * elements(node) / dims(node)[-1]
    return float(sum(elements(node, i) for i in range(len(node.attr["_output_shapes"].list.shape))))


def critical_path(
    graph: graph_pb2.GraphDef,
    gradients: Sequence[str],
    costs: Mapping[str, float],
    extra: Iterable[tuple[str, str]] = (),
) -> tuple[int, float]:
    """The longest path to one of `gradients`, in nodes and in work."""
    fanins = {node.name: {source(text) for text in node.input} for node in graph.node}
    for start, end in extra:
        fanins[end].add(start)
    longest: dict[str, tuple[int, float]] = {}
    pending = list(gradients)
    while pending:
        name = pending[-1]
        waiting = [fanin for fanin in fanins[name] if fanin not in longest]
        if name in longest or not waiting:
            pending.pop()
            before = [longest[fanin] for fanin in fanins[name]]
            longest[name] = (
                1 + max((nodes for nodes, _ in before), default=0),
                costs.get(name, 0.0) + max((cost for _, cost in before), default=0.0),
            )
        pending += waiting if name not in longest else []
    found = [longest[name] for name in gradients]
    return max(nodes for nodes, _ in found), max(cost for _, cost in found)


def total_order(graph: graph_pb2.GraphDef, producers: Sequence[str]) -> set[tuple[str, str]]:
    """Edges by which whatever a gradient needs beyond the earlier ones waits for these."""
    fanins = {node.name: {source(text) for text in node.input} for node in graph.node}
    done: set[str] = set()
    earlier: list[str] = []
    edges: set[tuple[str, str]] = set()
    for producer in producers:
        claimed: set[str] = set()
        pending = [producer]
        while pending:
            name = pending.pop()
            if name not in done and name not in claimed:
                claimed.add(name)
                pending += fanins[name]
        if len(claimed) > 1 and earlier:
            first = {name for name in claimed if fanins[name] and fanins[name] <= done}
            edges |= set(itertools.product(earlier, first))
            earlier = []
        earlier.append(producer)
        done |= claimed
    return edges


def num_controls(graph: graph_pb2.GraphDef, inside: set[str]) -> int:
    return sum(
        text.startswith("^") for node in graph.node if node.name in inside for text in node.input
    )


def measure(step: Step) -> list[Row]:
    producers = {
        node.attr["tensor_names"].list.s[0].decode(): source(node.input[0])
        for node in step.graph.node
        if node.op == "LibraAllReduce"
    }
    in_order = [producers[name] for name in step.names]
    own = {node.name for node in step.graph.node if node.op != "LibraAllReduce"}
    by_name = {node.name: node for node in step.graph.node}
    costs = {name: work(node, by_name) for name, node in by_name.items()}
    limit = sum(step.num_bytes) / _GROUPS
    ten: list[list[str]] = [[]]
    size = 0.0
    for name, num_bytes in zip(step.names, step.num_bytes, strict=True):
        if ten[-1] and size + num_bytes / 2 > limit * len(ten) and len(ten) < _GROUPS:
            ten.append([])
        ten[-1].append(name)
        size += num_bytes
    alone = [[name] for name in step.names]

    rows = [Row("as traced", 0, 0, *critical_path(step.graph, in_order, costs))]
    for what, groups, after_backward in (
        (f"{len(ten)} groups", ten, False),
        (f"{len(alone)} groups", alone, False),
        ("measuring", alone, True),
    ):
        graph = rewrite(step, groups, after_backward)
        joins = {node.name for node in graph.node if "/produced_" in node.name}
        edges = num_controls(graph, own | joins) - num_controls(step.graph, own)
        rows.append(Row(what, edges, len(joins), *critical_path(graph, in_order, costs)))
    extra = total_order(step.graph, in_order)
    rows.append(
        Row("total order", len(extra), 0, *critical_path(step.graph, in_order, costs, extra))
    )
    return rows


def table(network: str, step: Step, rows: Sequence[Row]) -> list[str]:
    first = rows[0]
    return [
        f"{network}: {len(step.graph.node)} nodes, {len(step.names)} gradients",
        "",
        "| order | control edges | joins | nodes on the critical path | work on it | to no order |",
        "|---|--:|--:|--:|--:|--:|",
        *(
            f"| {row.what} | {row.edges} | {row.joins} | {row.nodes} | {row.work / 1e9:.1f} G | "
            f"{row.work / first.work:.3f} |"
            for row in rows
        ),
        "",
    ]


def main(_: Sequence[str]) -> None:
    lines: list[str] = []
    for network in _NETWORKS.value:
        if network not in BUILDERS:
            raise app.UsageError(f"networks: {network!r} is not one of {', '.join(BUILDERS)}")
        step = trace(BUILDERS[network])
        lines += table(network, step, measure(step))
    print("\n".join(lines))
    if _MARKDOWN.value is not None:
        Path(_MARKDOWN.value).write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    _NETWORKS = flags.DEFINE_list("networks", ["resnet50", "bert"], "Networks to trace.")
    _MARKDOWN = flags.DEFINE_string("markdown", None, "Where to write the table, too.")
    app.run(main)
