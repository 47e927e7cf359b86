"""Overhead of steps in stages and bursts over what they compute, without links that limit them.

    python -m benchmarks.stage_overhead [--only mlp] [--rounds 50] [--minutes 30] [--remeasure]

For each model, two workers on one host, with a core each, train it in three ways in turns:

- `one worker` trains the joint batch of both; the other waits.
- `burst` is a burst plan that has all layers on the first rank: it computes the same, but takes the
  examples of the other rank, and returns results to it.
- `stages` is a pipeline of two stages and 4 microbatches.

The results are saved case by case in `--json`, unless steps of one worker spread so widely that
other programs must have run; the table of `--document` is made from them.

What a number means: the overhead of the burst plan is the median, over rounds, of its step over one
worker's, less 1. That of two stages is over the longest path: the step of the same schedule in
which each computation takes as long as it did in this round, and a transfer no time. So it contains
transfers. The goal is at most 5 %.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import case_flags, results
from benchmarks.case_runs import save_cases
from benchmarks.jobs.job import StageOverheadJob
from benchmarks.machine import machine, versions
from benchmarks.markdown import fill, table
from benchmarks.placing import Placing, WorkersFailedError
from benchmarks.speedup import MAX_SPREAD
from tf_libra.model_parallel.simulation.pipeline import simulate_pipeline
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan, PipelineStage

# Only the program that runs has its flags among those of the process; imported, it keeps them.
FLAGS = flags.FLAGS if __name__ == "__main__" else flags.FlagValues()
case_flags.define(FLAGS, "stage_overhead", "docs/performance.md", rounds=50)

MODELS = ("mlp", "cnn5m")
GOAL = 0.05
_MICROBATCHES = 4
_ONE_WORKER, _BURST, _STAGES = "one-worker", "burst", "stages"


def measure(model: str, rounds: int) -> dict[str, Any]:
    """Runs the workers for one model, and returns the results to save.

    Raises:
        WorkersFailedError: they did not end well.
    """
    values = flags.FlagValues()
    placing = Placing(values)
    values(["stage_overhead", "--np=2", f"--model={model}"])
    here = machine()
    found = placing.measured(
        "stage_overhead",
        StageOverheadJob,
        strategies=(),
        rounds=rounds,
        microbatches=_MICROBATCHES,
    )
    return summary(found) | {"rounds": rounds, "machine": here, "versions": versions()}


def summary(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the results to save from what the workers measured."""
    seconds = {name: np.array(each) for name, each in found["seconds"].items()}
    plan = PipelinePlan.from_document(found["plan"])
    paths = np.array(
        [longest_path(plan, stages) for stages in zip(*found["computed"], strict=True)]
    )
    return {
        "median_seconds": {name: float(np.median(each)) for name, each in seconds.items()},
        "longest_path_seconds": float(np.median(paths)),
        "spread": float(np.divide(*np.percentile(seconds[_ONE_WORKER], (90, 10)))),
        "overheads": {
            _BURST: results.spread(seconds[_BURST] / seconds[_ONE_WORKER] - 1),
            _STAGES: results.spread(seconds[_STAGES] / paths - 1),
        },
    }


def longest_path(plan: PipelinePlan, computed: Sequence[Sequence[float]]) -> float:
    """Returns the seconds of a pipeline's schedule with transfers that take no time.

    Args:
        plan: the pipeline, each stage on one rank.
        computed: by stage, seconds of forward and backward for a microbatch, of deferred gradients
            and of the update.
    """
    forward, backward, gradients, update = zip(*computed, strict=True)
    count = len(plan.stages)
    zeros = [0.0] * count
    layers = LayerGraph.chain(
        forward, backward, zeros, zeros[1:], update_seconds=update, deferred_seconds=gradients
    )
    stages = tuple(
        PipelineStage(index, index + 1, (index,), stage.order)
        for index, stage in enumerate(plan.stages)
    )
    cluster = Cluster.from_bandwidth(np.ones([count, count]))
    made = PipelinePlan(stages, layers.names, count, plan.strategy)
    return simulate_pipeline(layers, made, cluster).iteration_seconds


def blocks(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Returns the block of the document from the saved results, by model."""
    if not cases:
        return {"stage_overhead": "Not measured.\n"}
    head = (
        "model",
        "one worker, ms",
        "all layers on one rank of a burst plan, ms",
        "overhead",
        "two stages, ms",
        "longest path of their computation, ms",
        "overhead",
        "at most 5 %",
    )
    rows = []
    for model, case in cases.items():
        medians, overheads = case["median_seconds"], case["overheads"]
        met = [overheads[name]["median"] <= GOAL for name in (_BURST, _STAGES)]
        rows.append(
            (
                model,
                f"{medians[_ONE_WORKER] * 1e3:.1f}",
                f"{medians[_BURST] * 1e3:.1f}",
                _percent(overheads[_BURST]),
                f"{medians[_STAGES] * 1e3:.1f}",
                f"{case['longest_path_seconds'] * 1e3:.1f}",
                _percent(overheads[_STAGES]),
                "both" if all(met) else "burst" if met[0] else "stages" if met[1] else "neither",
            )
        )
    machines = dict.fromkeys(map(results.machine_text, cases.values()))
    lines = "".join(f"\nMeasured on {machine}\n" for machine in machines)
    return {"stage_overhead": table(head, rows) + lines}


def _percent(spread: Mapping[str, float]) -> str:
    median, low, high = (f"{100 * spread[key]:.0f}" for key in ("median", "p10", "p90"))
    return f"{median} % ({low} to {high})"


def _measure_undisturbed(model: str) -> dict[str, Any] | None:
    """Returns the results of a model; None, with a printed line, if they cannot be saved."""
    try:
        found = measure(model, FLAGS.rounds)
    except WorkersFailedError as error:
        print(f"stage_overhead: {model}: {error}", file=sys.stderr)
        return None
    if found["spread"] > MAX_SPREAD:
        print(f"stage_overhead: {model}: not saved, steps of one worker spread too widely")
        return None
    return found


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"flags only, got {argv[1]!r}")
    saved, num_failed = save_cases(FLAGS, MODELS, _measure_undisturbed)
    page = Path(FLAGS.document)
    in_order = {model: saved[model] for model in MODELS if model in saved}
    page.write_text(fill(page.read_text(), blocks(in_order), prefix="stage_overhead"))
    return 1 if num_failed else 0


if __name__ == "__main__":
    app.run(main)
