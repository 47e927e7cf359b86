"""Trains for thousands of steps with random pauses, and checks that nothing is lost or leaked.

    python -m benchmarks.soak --np 4 --steps 2000 --json build/soak.json
    python -m benchmarks.soak --np 4 --steps 2000 --stages 3 --json build/soak_pipeline.json
    python -m benchmarks.soak --np 4 --steps 2000 --shard_updates overlap

With `--stages` the ranks run a pipeline of so many stages, with four microbatches in every step.
Every few steps a rank, each on its own, pauses for a moment, so that ranks arrive in every order.
In the end
- all ranks have the same bits in their weights, and these are the weights of one process that has
  trained on the joint batches, to a relative 1e-9;
- every planned all-reduce of every step was executed: telemetry counts them (of a pipeline the
  weights alone tell);
- resident memory is flat: on every rank, the median of the last tenth of the steps is at most
  `--max_growth_bytes` above that of the second tenth.

The status is 1 if one of these is not so.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks.machine import machine, versions

_FEATURES, _WIDTHS, _SHARD = 64, (128, 96, 10), 8
_TOLERANCE = 1e-9
_MICROBATCHES = 4


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"flags only, got {argv[1]!r}")
    if _WORKER.value:
        return _work()
    here = machine()
    launcher = [sys.executable, "-m", "tf_libra.cli", "run", "--horovod"]
    launcher += ["-np", str(_NP.value)]
    worker = [sys.executable, "-m", "benchmarks.soak", "--worker", *sys.argv[1:]]
    # Lines of workers may have a prefix.
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    done = subprocess.run([*launcher, *worker], stdout=subprocess.PIPE, text=True, env=environment)
    found = [line.partition("outcome ")[2] for line in done.stdout.splitlines()]
    outcomes = [json.loads(text) for text in found if text]
    if done.returncode != 0 or not outcomes:
        print(f"soak: the workers failed with status {done.returncode}\n{done.stdout}")
        return 1
    document = outcomes[0] | {"machine": here, "versions": versions()}
    if _JSON.value is not None:
        Path(_JSON.value).write_text(json.dumps(document, indent=1) + "\n")
    print(_summary(document))
    return 0 if document["passed"] else 1


def _work() -> int:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    import tf_libra
    from tf_libra.backends import engine as engine_lib
    from tf_libra.specs.telemetry import gathers_among

    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    weights, plain_step = _model(tf)
    stages = _STAGES.value
    if stages is None:
        libra = tf_libra.strategies.Libra(threads=(1, 2))
        tuning = tf_libra.Tuning(max_seconds=600)
        decorate = tf_libra.optimize(libra, tuning=tuning, shard_updates=_SHARD_UPDATES.value)
        step = decorate(plain_step)
    else:
        spp = tf_libra.strategies.Spp(num_microbatches=_MICROBATCHES, num_stages=stages)
        step = tf_libra.optimize(spp)(plain_step)
    random = np.random.default_rng(rank)
    resident, executed, planned, pauses = [], 0, 0, 0
    start = time.perf_counter()
    for number in range(_STEPS.value):
        if random.random() < 1 / _PAUSE_EVERY.value:
            time.sleep(random.uniform(0, _PAUSE_SECONDS.value))
            pauses += 1
        joint = _batch(number, size)
        mine = slice(rank * _SHARD, (rank + 1) * _SHARD)
        settled = step.settled
        step(*(tf.constant(part[mine]) for part in joint))
        resident.append(_resident_bytes())
        if stages is not None:
            continue
        if settled:  # nothing else drains telemetry any more
            drained = engine_lib.drain_telemetry()
            executed += len(drained) - len(gathers_among(drained))
            planned += len(step.plan.groups)
        elif step.settled:
            engine_lib.drain_telemetry()
    seconds = time.perf_counter() - start
    step.synchronize_variables()
    tenth = _STEPS.value // 10
    early, late = (
        float(np.median(part)) for part in (resident[tenth : 2 * tenth], resident[-tenth:])
    )
    report = {
        "weights": [value.numpy().tobytes().hex() for value in weights],
        "resident_bytes": [early, late],
        "executed": executed,
        "planned": planned,
        "pauses": pauses,
    }
    engine = engine_lib.running()
    assert engine is not None
    everyone = engine.all_gather(report)
    if rank != 0:
        return 0
    alone, alone_step = _model(tf)
    for number in range(_STEPS.value):
        alone_step(*map(tf.constant, _batch(number, size)))
    error = max(
        float(np.max(np.abs(a.numpy() - b.numpy()) / (np.abs(b.numpy()) + 1e-3)))
        for a, b in zip(weights, alone, strict=True)
    )
    growth = [late - early for early, late in (rank["resident_bytes"] for rank in everyone)]
    outcome: dict[str, Any] = {
        "np": size,
        "steps": _STEPS.value,
        "seconds": seconds,
        "pauses": [report["pauses"] for report in everyone],
        "same_bits": all(report["weights"] == everyone[0]["weights"] for report in everyone),
        "relative_error": error,
        "stages": stages,
        "planned": [report["planned"] for report in everyone],
        "executed": [report["executed"] for report in everyone],
        "resident_bytes": [report["resident_bytes"] for report in everyone],
        "growth_bytes": growth,
    }
    outcome["passed"] = (
        outcome["same_bits"]
        and error <= _TOLERANCE
        and outcome["planned"] == outcome["executed"]
        and (min(outcome["planned"]) > 0 or stages is not None)
        and max(growth) <= _MAX_GROWTH.value
    )
    print(f"outcome {json.dumps(outcome)}", flush=True)
    return 0


def _model(tf: Any) -> tuple[list[Any], Any]:
    """Dense layers in float64 and their training step, with momentum."""
    import tf_libra

    random = np.random.default_rng(7)
    weights, rows = [], _FEATURES
    for layer, columns in enumerate(_WIDTHS):
        values = random.normal(size=(rows, columns)) / np.sqrt(rows)
        weights.append(tf.Variable(values, name=f"w{layer}"))
        weights.append(tf.Variable(np.zeros(columns), name=f"b{layer}"))
        rows = columns
    slots = [tf.Variable(tf.zeros_like(weight), trainable=False) for weight in weights]

    @tf.function
    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = inputs
            for layer in range(0, len(weights), 2):
                hidden = tf.nn.tanh(hidden @ weights[layer] + weights[layer + 1])
                hidden = tf_libra.boundary(hidden)  # without a pipeline nothing
            loss = tf.reduce_mean((hidden - labels) ** 2)
        gradients = tape.gradient(loss, weights)
        for weight, slot, gradient in zip(weights, slots, gradients, strict=True):
            slot.assign(0.9 * slot + gradient)
            weight.assign_sub(0.01 * slot)
        return loss

    return weights, step


def _batch(number: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The joint batch of a step."""
    random = np.random.default_rng(number)
    rows = size * _SHARD
    return random.normal(size=(rows, _FEATURES)), random.normal(size=(rows, _WIDTHS[-1]))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _summary(document: dict[str, Any]) -> str:
    rows = [
        f"{'passed' if document['passed'] else 'FAILED'}: {document['steps']} steps on"
        f" {document['np']} workers in {document['seconds']:.0f} s,"
        f" {sum(document['pauses'])} pauses",
        f"weights: {'the same bits' if document['same_bits'] else 'DIFFERENT BITS'} on all ranks,"
        f" {document['relative_error']:.1e} from one process",
    ]
    if document["stages"] is None:
        executed, planned = document["executed"], document["planned"]
        rows.append(f"all-reduces: {executed} executed of {planned} planned, by rank")
    else:
        rows.append(f"a pipeline of {document['stages']} stages")
    for rank, (early, late) in enumerate(document["resident_bytes"]):
        rows.append(
            f"rank {rank}: {early / 2**20:.1f} MiB after warm-up, {late / 2**20:.1f} at the end"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    _NP = flags.DEFINE_integer("np", 4, "Workers.", lower_bound=2)
    _STEPS = flags.DEFINE_integer("steps", 2000, "Training steps.", lower_bound=100)
    _PAUSE_EVERY = flags.DEFINE_integer("pause_every", 5, "Steps between pauses, on average.", 1)
    _PAUSE_SECONDS = flags.DEFINE_float("pause_seconds", 0.05, "Longest pause.", lower_bound=0)
    _MAX_GROWTH = flags.DEFINE_integer(
        "max_growth_bytes", 8 << 20, "Of resident memory, per rank.", 0
    )
    _STAGES = flags.DEFINE_integer(
        "stages", None, "Of a pipeline; default: data parallelism.", lower_bound=1
    )
    _SHARD_UPDATES = flags.DEFINE_enum(
        "shard_updates", "auto", ["auto", "overlap"], "Option of data parallelism."
    )
    _JSON = flags.DEFINE_string("json", None, "File to write the outcome to.")
    _WORKER = flags.DEFINE_bool("worker", False, "Set for the workers that this starts.")
    app.run(main)
