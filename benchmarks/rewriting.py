"""Measures the pass on a graph of several training steps: how long it takes, how that grows.

    python -m benchmarks.rewriting [--copies 1,2,5,10,20,50] [--conditionals 20,40,80,200]
        [--nodes 40000] [--strategy horovod-fusion] [--repeats 3] [--json FILE]

A step of Keras' ResNet-50 is traced once, with one all-reduce per gradient. As many copies as
`steps_per_execution` asks for are called by one function and inlined by Grappler, as they are in
training. Then Grappler runs with our pass alone, under a plan, and under a plan of another model,
where the pass looks at the graph and leaves it: the difference is what rewriting takes, the rest is
what Grappler takes to be handed a graph and to hand it back. What is counted is CPU seconds of the
process, in which other programs of the machine have little part.

The second table is of graphs of `--nodes` nodes: one chain and conditionals that read values of it,
each of which all-reduces a tensor of its own in one branch. The all-reduces are in as many
control-flow contexts, and each is ordered against all earlier ones. An empty `--copies=` or
`--conditionals=` leaves out a table.
"""

import dataclasses
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import app, flags
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.python.grappler import cluster as grappler_cluster
from tensorflow.python.grappler import tf_optimizer

import tf_libra
from benchmarks.machine import machine, versions
from tf_libra.internal import native
from tf_libra.runtime import grappler
from tf_libra.specs.plan import Plan

COPIES = (1, 2, 5, 10, 20, 50)
CONDITIONALS = (20, 40, 80, 200)
COST = tf_libra.ContentionModel(
    num_workers=2,
    hop_latency=1e-5,
    compute=(1.0, 0.1),
    overlapped=(5e9, 4.5e9, 0.5),
    exclusive=(6e9, 5e9, 0.5),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Time of the pass on one graph.

    Attributes:
        nodes: of that graph.
        groups: all-reduces that the pass wrote.
        seconds: CPU seconds with the plan, the median.
        untouched_seconds: those where the pass leaves the graph as it is, the median.
    """

    nodes: int
    groups: int
    seconds: float
    untouched_seconds: float

    @property
    def rewriting_seconds(self) -> float:
        """CPU seconds of rewriting, without those of Grappler itself."""
        return self.seconds - self.untouched_seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result(Timing):
    """Time of the pass on a graph of several steps.

    Attributes:
        copies: steps in one graph.
    """

    copies: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConditionalsResult(Timing):
    """Time of the pass on a graph with conditionals.

    Attributes:
        conditionals: conditionals that all-reduce.
    """

    conditionals: int


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step, traced.

    Attributes:
        function: takes nothing and returns the loss.
        variables: those that are trained, in backward order.
    """

    function: Any
    variables: tuple[Any, ...]


def traced_step() -> Step:
    """A step of ResNet-50 with stochastic gradient descent, one all-reduce per gradient."""
    model = tf.keras.applications.ResNet50(weights=None)
    model.trainable = True
    variables = tuple(reversed(model.trainable_variables))
    images, labels = tf.zeros((1, 224, 224, 3)), tf.zeros((1,), tf.int32)
    all_reduce = native.load().ops.libra_all_reduce

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            outputs = model(images, training=True)
            loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, outputs))
        for variable, gradient in zip(
            variables, tape.gradient(loss, [v.value for v in variables]), strict=True
        ):
            (reduced,) = all_reduce(tensors=[gradient], tensor_names=[variable.path])
            variable.assign_sub(0.01 * reduced)
        return loss

    step.get_concrete_function()
    return Step(step, variables)


def plan_for(step: Step, strategy: str, prefix: str = "") -> Plan:
    """A plan of the step; with a prefix to the names, one of another model."""
    num_bytes = [variable.value.shape.num_elements() * 4 for variable in step.variables]
    return plan_of([prefix + variable.path for variable in step.variables], num_bytes, strategy)


def plan_of(names: Sequence[str], num_bytes: Sequence[int], strategy: str) -> Plan:
    """A plan of gradients of these sizes."""
    seconds = [1e-5] * len(names)
    profile = tf_libra.BackwardProfile.from_arrays(num_bytes, seconds, names)
    return tf_libra.make_plan(profile, COST, strategy)


def unrolled(step: Step, copies: int) -> meta_graph_pb2.MetaGraphDef:
    """The graph of so many steps, inlined, and what is fetched from it."""

    @tf.function
    def steps() -> tf.Tensor:
        for _ in range(copies):
            loss = step.function()
        return loss

    graph = steps.get_concrete_function().graph
    fetch = [tensor.op.name for tensor in graph.outputs]
    fetch += [operation.name for operation in graph.control_outputs]
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    config.graph_options.rewrite_options.optimizers.append("function")
    return meta_graph(optimize(meta_graph(graph.as_graph_def(), fetch), config), fetch)


def meta_graph(graph: graph_pb2.GraphDef, fetch: Sequence[str]) -> meta_graph_pb2.MetaGraphDef:
    """A graph as Grappler takes it."""
    meta = meta_graph_pb2.MetaGraphDef(graph_def=graph)
    meta.collection_def["train_op"].node_list.value.extend(fetch)
    return meta


def optimize(
    meta: meta_graph_pb2.MetaGraphDef, config: config_pb2.ConfigProto
) -> graph_pb2.GraphDef:
    """Runs Grappler."""
    cluster = grappler_cluster.Cluster(disable_detailed_stats=True)
    try:
        return tf_optimizer.OptimizeGraph(
            config, meta, verbose=False, graph_id=b"steps", cluster=cluster
        )
    finally:
        cluster.Shutdown()


def timed(meta: meta_graph_pb2.MetaGraphDef, plan: Plan, repeats: int) -> float:
    """Median CPU seconds of Grappler with our pass alone."""
    grappler.register(plan)
    options = grappler.call_options(plan).config_proto_serialized
    config = config_pb2.ConfigProto.FromString(options)
    rewrite = config.graph_options.rewrite_options
    rewrite.optimizers.append(grappler.OPTIMIZER)
    rewrite.fail_on_optimizer_errors = True
    rewrite.meta_optimizer_timeout_ms = -1
    times = []
    for _ in range(repeats):
        start = time.process_time()
        optimize(meta, config)
        times.append(time.process_time() - start)
    return statistics.median(times)


def with_conditionals(number: int, num_nodes: int) -> meta_graph_pb2.MetaGraphDef:
    """A chain of nodes from which `number` conditionals read that all-reduce.

    Args:
        number: of conditionals.
        num_nodes: of the graph, about.
    """
    all_reduce = native.load().ops.libra_all_reduce
    length = max(num_nodes // number - 6, 1)  # a conditional is six nodes
    with tf.Graph().as_default() as graph:
        value, outputs = tf.zeros(()), []
        for i in range(number):
            for _ in range(length):
                value = tf.raw_ops.Identity(input=value)
            untaken, taken = tf.raw_ops.Switch(data=value, pred=tf.constant(True))
            (reduced,) = all_reduce(
                tensors=[tf.raw_ops.Identity(input=taken)], tensor_names=[f"t{i}"]
            )
            merged = tf.raw_ops.Merge(inputs=[tf.raw_ops.Identity(input=untaken), reduced])
            outputs.append(merged.output.op.name)
    return meta_graph(graph.as_graph_def(), outputs)


def measure(step: Step, copies: int, strategy: str, repeats: int) -> Result:
    """Times the pass on a graph of so many steps."""
    plans = plan_for(step, strategy), plan_for(step, strategy, "other/")
    timing = timing_of(unrolled(step, copies), *plans, repeats)
    if timing.groups < copies * len(plans[0].groups):
        raise AssertionError(f"{timing.groups} all-reduces for {copies} copies")
    return Result(copies=copies, **dataclasses.asdict(timing))


def measure_conditionals(
    number: int, num_nodes: int, strategy: str, repeats: int
) -> ConditionalsResult:
    """Times the pass on a graph of so many conditionals."""
    plan, other = (
        plan_of([f"{prefix}t{i}" for i in range(number)], [4] * number, strategy)
        for prefix in ("", "other/")
    )
    timing = timing_of(with_conditionals(number, num_nodes), plan, other, repeats)
    if timing.groups != number:
        raise AssertionError(f"{timing.groups} all-reduces for {number} conditionals")
    return ConditionalsResult(conditionals=number, **dataclasses.asdict(timing))


def timing_of(meta: meta_graph_pb2.MetaGraphDef, plan: Plan, other: Plan, repeats: int) -> Timing:
    """Times the pass under a plan of the graph, and under another that it does not fit."""
    seconds = timed(meta, plan, repeats)
    (report,) = grappler.report(plan).graphs
    written = [group for group in report.groups if len(group.tensors)]
    grappler.unregister(plan)
    untouched = timed(meta, other, repeats)
    grappler.unregister(other)
    return Timing(
        nodes=len(meta.graph_def.node),
        groups=len(written),
        seconds=seconds,
        untouched_seconds=untouched,
    )


def markdown(results: Sequence[Result]) -> str:
    """The results as a table."""
    lines = [
        "| copies | nodes | all-reduces | CPU seconds | untouched | rewriting | per copy, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results:
        per_copy = 1e3 * r.rewriting_seconds / r.copies
        lines.append(
            f"| {r.copies} | {r.nodes} | {r.groups} | {r.seconds:.2f} | {r.untouched_seconds:.2f}"
            f" | {r.rewriting_seconds:.2f} | {per_copy:.0f} |"
        )
    return "\n".join(lines) + "\n"


def markdown_of_conditionals(results: Sequence[ConditionalsResult]) -> str:
    """The results of graphs with conditionals as a table."""
    lines = [
        "| conditionals | nodes | CPU seconds | untouched | rewriting |",
        "|---|---|---|---|---|",
    ]
    for r in results:
        lines.append(
            f"| {r.conditionals} | {r.nodes} | {r.seconds:.2f} | {r.untouched_seconds:.2f}"
            f" | {r.rewriting_seconds:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> None:
    """Measures and prints."""
    if len(argv) > 1:
        raise app.UsageError(f"only flags are accepted, got {argv[1:]}")
    results, conditionals = [], []
    if _COPIES.value:
        step = traced_step()
        for copies in _COPIES.value:
            results.append(measure(step, int(copies), _STRATEGY.value, _REPEATS.value))
            print(markdown(results[-1:]).splitlines()[-1], flush=True)
        print(f"\n{markdown(results)}")
    for number in _CONDITIONALS.value:
        conditionals.append(
            measure_conditionals(int(number), _NODES.value, _STRATEGY.value, _REPEATS.value)
        )
        print(markdown_of_conditionals(conditionals[-1:]).splitlines()[-1], flush=True)
    if conditionals:
        print(f"\n{markdown_of_conditionals(conditionals)}")
    print(machine())
    if _JSON.value:
        document = {
            "machine": machine(),
            "versions": versions(),
            "strategy": _STRATEGY.value,
            "results": [dataclasses.asdict(result) for result in results],
            "conditionals": [dataclasses.asdict(result) for result in conditionals],
        }
        Path(_JSON.value).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    _COPIES = flags.DEFINE_list("copies", [str(n) for n in COPIES], "numbers of steps in one graph")
    _CONDITIONALS = flags.DEFINE_list(
        "conditionals", [str(n) for n in CONDITIONALS], "numbers of conditionals in one graph"
    )
    _NODES = flags.DEFINE_integer("nodes", 40000, "nodes of a graph with conditionals", 1)
    _STRATEGY = flags.DEFINE_string("strategy", "horovod-fusion", "what plans the groups")
    _REPEATS = flags.DEFINE_integer("repeats", 3, "runs of each; the median counts", 1)
    _JSON = flags.DEFINE_string("json", None, "write all results to this file")
    app.run(main)
