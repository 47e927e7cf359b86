"""Files of a pipeline in its log directory: the planner's input, the plan, and pictures.

Rank 0 writes. A file that cannot be written is no reason to end the training: it is logged once.
"""

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tf_libra.model_parallel.reporting.pipeline_record import PipelineRecord
from tf_libra.model_parallel.simulation.pipeline_gantt import Bar, pictures
from tf_libra.reporting.logdir_files import documents, draw, write
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan

_NAMES = ("pipeline", "layers", "cluster", "trace")


def write_planned(
    layers: LayerGraph,
    cluster: Cluster,
    plan: PipelinePlan,
    logdir: Path,
    function: str,
    log: logging.Logger,
) -> None:
    """Writes what `tf-libra pipeline` reads: pipeline.json, layers.json, cluster.json.

    Args:
        layers: measured layers.
        cluster: measured link rates.
        plan: the pipeline that was planned from them.
        logdir: the log directory.
        function: name of the training function; the first one in a process has the plain names.
        log: receives a warning if a file cannot be written.
    """
    paths, told = documents(logdir, function, _NAMES)
    if told:
        log.info("%s", told)
    texts = {
        "pipeline": plan.to_json(), "layers": layers.to_json(), "cluster": cluster.to_json(),
    }  # fmt: skip
    write({paths[name]: text for name, text in texts.items()}, log)


def write_measured(
    make_record: Callable[[str, int], PipelineRecord],
    logdir: Path,
    function: str,
    log: logging.Logger,
) -> None:
    """Writes the predicted and measured activity of every rank: trace.json and pipeline.svg.

    The trace is of Chrome's format, for Perfetto and other viewers. The picture needs Matplotlib,
    and is left out without it.

    Args:
        make_record: makes the record from the function's name and the rank.
        logdir: the log directory.
        function: name of the training function.
        log: as for `write_planned`.
    """
    record = make_record(function, 0)
    paths, _ = documents(logdir, function, _NAMES)
    measured = (record.bars, record.seconds)
    found = pictures(record.layers, record.plan, record.cluster, measured)
    events = [event for one in found for event in _events(one.title, one.bars)]
    write({paths["trace"]: json.dumps({"traceEvents": events})}, log)

    def plot() -> None:
        from tf_libra.model_parallel.simulation.pipeline_plot import plot_devices

        plot_devices(
            [(one.title, one.bars, one.seconds) for one in found],
            paths["pipeline"].with_suffix(".svg"),
        )

    draw("pipeline.svg", plot, log)


def _events(what: str, bars: Iterable[Bar]) -> list[dict[str, Any]]:
    """Complete events, in microseconds: a process for what is predicted, another for the rest."""
    return [
        {
            "name": one.kind if one.microbatch is None else f"{one.kind} {one.microbatch}",
            "cat": one.kind,
            "ph": "X",
            "pid": what,
            "tid": f"rank {one.device}",
            "ts": 1e6 * one.start_seconds,
            "dur": 1e6 * (one.stop_seconds - one.start_seconds),
            "args": {"stage": one.stage, "microbatch": one.microbatch},
        }
        for one in bars
    ]
