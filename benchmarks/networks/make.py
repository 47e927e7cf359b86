"""Traces and measures the networks, and writes them down for `benchmarks.networks.load`.

    python -m benchmarks.networks.make [--networks vgg16 --networks ...] [--batch 2] [--steps 8]

Gradients, their sizes and their order come from the trace of a training step. The arithmetic of
every backward op counts for the first gradient that needs it; so do its seconds on this CPU, on one
thread. An op takes as long as it did in the fastest of the measured steps, op by op: what slows
a step down, other programs first of all, only ever adds.
"""

import dataclasses
import json
import math
import platform
import time
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import app, flags

from benchmarks import networks
from benchmarks.networks.models import TASKS, Task
from benchmarks.networks.network import FORMAT, NAMES, VERSION, CpuRun, Network, Tensor
from benchmarks.networks.operations import ancestors, count_operations, first_needed
from tf_libra.capture.backward_order import backward_order
from tf_libra.profiling.executed_graph import GraphCapture
from tf_libra.profiling.profiler_session import TraceSession, read_events

_DIGITS = 4  # significant, of what is written down


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced training step.

    Attributes:
      step: the `tf.function`: from `data` to the loss and the gradients, in backward order.
      data: one batch.
      batch: its samples.
      names: of the gradients.
      num_bytes: their sizes.
      operations: that each is the first to need, per sample.
      forward_operations: of the loss, per sample.
    """

    step: Any
    data: Any
    batch: int
    names: list[str]
    num_bytes: list[int]
    operations: list[float]
    forward_operations: float


def make(name: str, task: Task, batch: int, steps: int) -> Network:
    """Traces and measures one network.

    Args:
      name: what to call it.
      task: the network with data.
      batch: samples per step.
      steps: steps to measure, at least 1.
    """
    traced = trace(task, batch)
    cpu, seconds = _measure(traced, steps)
    columns = (traced.names, traced.num_bytes, traced.operations, seconds)
    return Network(
        name=name,
        title=task.title,
        source=task.source,
        sample=task.sample,
        forward_operations=traced.forward_operations,
        cpu=cpu,
        tensors=tuple(map(Tensor, *columns)),
    )


def to_json(network: Network) -> str:
    """Returns JSON text that `benchmarks.networks.network.from_json` reads, one line per tensor."""
    value = {"format": FORMAT, "version": VERSION} | dataclasses.asdict(network)
    rows = [json.dumps(dataclasses.astuple(tensor)) for tensor in network.tensors]
    value["tensors"] = []
    return json.dumps(value, indent=1).replace('"tensors": []', '"tensors": [\n%s\n ]') % (
        ",\n".join(f"  {row}" for row in rows)
    )


def trace(task: Task, batch: int) -> Traced:
    """Traces a training step with static shapes; nothing is computed."""
    data = tf.nest.map_structure(tf.constant, task.batch(batch))
    variables = task.model.trainable_variables
    order: list[int] = []

    @tf.function
    def step(data: Any) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = task.loss(data)
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]
        order[:] = backward_order(gradients, range(len(gradients)))
        return [loss, *(gradients[index] for index in order)]

    graph = step.get_concrete_function(data).graph
    loss, *gradients = (tensor.op for tensor in graph.outputs)
    inputs = {op.name: [x.op.name for x in op.inputs] for op in graph.get_operations()}
    counts = {op.name: count_operations(op) / batch for op in graph.get_operations()}
    producers = [op.name for op in gradients]
    forward = ancestors([loss.name], inputs)
    operations = first_needed(producers, inputs, counts, forward)
    return Traced(
        step,
        data,
        batch,
        [variables[index].path.removeprefix(f"{task.model.name}/") for index in order],
        [4 * math.prod(variables[index].shape) for index in order],
        list(map(_rounded, operations)),
        _rounded(math.fsum(counts[node] for node in forward)),
    )


def _measure(traced: Traced, steps: int) -> tuple[CpuRun, list[float]]:
    with GraphCapture() as capture:
        traced.step(traced.data)
    producers: dict[int, str] = {}
    inputs: dict[str, list[str]] = {}
    for graph in capture.graphs:
        for node in graph.node:
            inputs[node.name] = [name.partition(":")[0] for name in node.input if name[0] != "^"]
            if node.op == "_Retval":
                producers[node.attr["index"].i] = node.name
    least: dict[str, float] = {}
    fastest = math.inf
    for _ in range(steps):
        with TraceSession() as session:
            started = time.perf_counter()
            traced.step(traced.data)
            fastest = min(fastest, time.perf_counter() - started)
        if session.trace is None:
            raise RuntimeError(session.unavailable)
        events = read_events(session.trace)
        durations = 1e-9 * (events.end_ns - events.start_ns)
        for node, seconds in zip(events.node, durations, strict=True):
            name = events.node_names[node]
            least[name] = min(float(seconds), least.get(name, math.inf))
    forward = ancestors([producers.pop(0)], inputs)
    gradients = [producers[index] for index in sorted(producers)]
    seconds = first_needed(gradients, inputs, least, forward)
    run = CpuRun(
        processor=_processor(),
        tensorflow=tf.__version__,
        batch=traced.batch,
        steps=steps,
        forward_seconds=_rounded(math.fsum(least.get(node, 0.0) for node in forward)),
        fastest_step_seconds=_rounded(fastest),
    )
    return run, list(map(_rounded, seconds))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def main(argv: list[str]) -> None:
    """Makes the networks that the flags name."""
    if len(argv) > 1:
        raise app.UsageError(f"only flags are accepted, got {argv[1:]}")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for name in _NETWORKS.value:
        network = make(name, TASKS[name](), _BATCH.value, _STEPS.value)
        path = Path(_FOLDER.value) / f"{name}.json"
        path.write_text(to_json(network) + "\n")
        print(
            f"{path}: {len(network.tensors)} tensors, "
            f"{sum(t.num_bytes for t in network.tensors) / 4e6:.1f} M parameters, forward "
            f"{network.forward_operations / 1e9:.1f} and backward "
            f"{network.backward_operations / 1e9:.1f} G operations per sample; seconds: forward "
            f"{network.cpu.forward_seconds:.3f}, backward "
            f"{sum(t.cpu_seconds for t in network.tensors):.3f}, fastest step "
            f"{network.cpu.fastest_step_seconds:.3f}",
            flush=True,
        )
        tf.keras.backend.clear_session()


if __name__ == "__main__":
    _NETWORKS = flags.DEFINE_multi_enum("networks", list(NAMES), list(NAMES), "which to make")
    _BATCH = flags.DEFINE_integer("batch", 2, "samples per step", 1)
    _STEPS = flags.DEFINE_integer("steps", 8, "steps to measure", 1)
    _FOLDER = flags.DEFINE_string(
        "folder", str(Path(networks.__file__).parent / "data"), "where to write"
    )
    app.run(main)
