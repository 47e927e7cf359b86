"""Measures how long planning a pipeline takes, and how it grows.

    python -m benchmarks.pipeline_planning [--repeats 3] [--markdown FILE] [--json FILE]

The model is BERT of so many blocks, with the embedding before them and two layers of heads behind
them; the cluster is servers of four devices, as in SPP's simulation (section V-B). One thread: CPU
seconds are what it takes on a machine with nothing else to do.
"""

import dataclasses
import json
import os
import platform
import statistics
import time
from pathlib import Path

import numpy as np
from absl import app, flags, logging

import tf_libra
from benchmarks.spp import parameters

LIMITS = {(75, 32): 5.0, (75, 64): 40.0}  # seconds, of layers and devices
GROWTH = {
    "layers": ((19, 32, 32), (38, 32, 32), (75, 32, 32), (150, 32, 32)),
    "devices": ((75, 8, 32), (75, 16, 32), (75, 32, 32), (75, 64, 32)),
    "microbatches": ((75, 32, 8), (75, 32, 32), (75, 32, 128)),
}


@dataclasses.dataclass(frozen=True)
class Result:
    layers: int
    devices: int
    microbatches: int
    cpu_seconds: float
    stages: int


def measure(layers: int, devices: int, microbatches: int, repeats: int) -> Result:
    graph = parameters.bert(layers - 3)
    cluster = parameters.servers([4] * (devices // 4))
    times = []
    for _ in range(repeats):
        started = time.process_time()
        plan = tf_libra.make_pipeline_plan(graph, cluster, "spp", num_microbatches=microbatches)
        times.append(time.process_time() - started)
    logging.info("%d layers, %d devices: %.2f CPU seconds", layers, devices, min(times))
    return Result(layers, devices, microbatches, statistics.median(times), len(plan.stages))


def run(repeats: int) -> dict[str, list[Result]]:
    measured = {
        case: measure(*case, repeats)
        for case in sorted({case for cases in GROWTH.values() for case in cases})
    }
    return {what: [measured[case] for case in cases] for what, cases in GROWTH.items()}


def markdown(tables: dict[str, list[Result]]) -> str:
    head = ("grows", "layers", "devices", "microbatches", "CPU seconds", "limit", "stages")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for what, results in tables.items():
        for r in results:
            limit = LIMITS.get((r.layers, r.devices), "") if r.microbatches == 32 else ""
            cells = (what, r.layers, r.devices, r.microbatches, f"{r.cpu_seconds:.2f}", limit)
            lines.append("| " + " | ".join(map(str, (*cells, r.stages))) + " |")
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"only flags are accepted, got {argv[1:]}")
    logging.set_verbosity(logging.INFO)
    tables = run(_REPEATS.value)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}"
    text = markdown(tables) + f"\nOne thread, median of {_REPEATS.value}; {machine}.\n"
    print(text)
    if _MARKDOWN.value:
        Path(_MARKDOWN.value).write_text(text)
    if _JSON.value:
        value = {
            "machine": machine,
            "repeats": _REPEATS.value,
            "tables": {w: [dataclasses.asdict(r) for r in rows] for w, rows in tables.items()},
        }
        Path(_JSON.value).write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    _REPEATS = flags.DEFINE_integer("repeats", 3, "plans per case; the median counts", 1)
    _MARKDOWN = flags.DEFINE_string("markdown", None, "write the tables to this file")
    _JSON = flags.DEFINE_string("json", None, "write all results to this file")
    app.run(main)
