"""Text and files about a pipeline plan."""

import json
import logging
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tf_libra.internal import formatting
from tf_libra.model_parallel.profiling.step_measurement import MeasuredLayers
from tf_libra.model_parallel.reporting.plan_records import PipelineRecord
from tf_libra.model_parallel.simulation.pipeline import stage_seconds
from tf_libra.model_parallel.simulation.pipeline_gantt import (
    LEGEND,
    Bar,
    PipelineGantt,
    bottleneck,
    chart,
    idle,
    layers_of,
    pictures,
)
from tf_libra.planning.one_worker import OneWorkerComparison
from tf_libra.reporting.logdir_files import documents, draw, write
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan

_CHART_COLUMNS = 80


def in_a_line(plan: PipelinePlan) -> str:
    """Return the ranks of each stage and the predicted time, in one line."""
    stages = "; ".join(_stage(plan, index) for index in range(len(plan.stages)))
    return (
        f"{_kind(plan)}, {plan.num_microbatches} microbatches, predicted"
        f" {formatting.time(plan.predicted_seconds)}: {stages}"
    )


def describe_measured(plan: PipelinePlan, measured: MeasuredLayers) -> str:
    """Return the measured and the predicted time of an iteration, in one line."""
    return (
        f"an iteration takes {formatting.time(measured.seconds)}; predicted:"
        f" {formatting.time(plan.predicted_seconds)}"
    )


def _kind(plan: PipelinePlan) -> str:
    count = len(plan.stages)
    return "data parallelism" if count == 1 else f"a pipeline of {count} stages"


def _stage(plan: PipelinePlan, index: int) -> str:
    ranks = plan.stages[index].devices
    listed = ", ".join(map(str, ranks))
    return f"{layers_of(plan, index)} on rank{'s' if len(ranks) > 1 else ''} {listed}"


def explained(
    name: str,
    plan: PipelinePlan,
    layers: LayerGraph,
    cluster: Cluster,
    measured: MeasuredLayers | None = None,
    num_groups: Sequence[int] = (),
    compared: OneWorkerComparison | None = None,
) -> str:
    """Return the plan, its measurements, and charts of all ranks as text, predicted first.

    Args:
        name: name of the training function.
        plan: pipeline plan.
        layers: measured layers.
        cluster: measured link rates.
        measured: measured iteration; None before a measurement.
        num_groups: for each stage, number of gradient groups that are all-reduced during backward
            computation; 0: one all-reduce afterwards.
        compared: comparison with one worker; None if it is unknown.
    """
    lines = [
        f"{name}: {_kind(plan)} under {plan.strategy}, {plan.num_microbatches} microbatches",
        *against_one_worker(compared),
        ("" if measured is None else f"measured iteration: {formatting.time(measured.seconds)}, ")
        + f"predicted{' iteration' if measured is None else ''}:"
        f" {formatting.time(plan.predicted_seconds)}",
        *textwrap.wrap(bottleneck(layers, plan, cluster), formatting.COLUMNS),
        "",
        *_table(plan, layers),
        *_reductions(num_groups),
        "",
        *_charts(plan, layers, cluster, measured),
    ]
    for note in plan.notes:
        lines += textwrap.wrap(f"note: {note}", formatting.COLUMNS)
    return "\n".join(line[: formatting.COLUMNS] for line in lines)


def compare_with_one_worker(
    plan: PipelinePlan, layers: LayerGraph, seconds: float
) -> OneWorkerComparison | None:
    """Return the comparison of an iteration with one worker, which computes all microbatches.

    Args:
        plan: pipeline plan.
        layers: measured layers.
        seconds: measured or predicted iteration.
    """
    if plan.num_devices == 1:
        return None
    computation = sum(layer.forward_seconds + layer.backward_seconds for layer in layers.layers)
    updates = sum(layer.update_seconds + layer.deferred_seconds for layer in layers.layers)
    alone = plan.num_microbatches * computation + updates
    return OneWorkerComparison(plan.num_devices, seconds, alone)


def against_one_worker(compared: OneWorkerComparison | None) -> list[str]:
    """Return the lines that compare with one worker."""
    return (
        []
        if compared is None
        else textwrap.wrap(f"one worker: {compared.describe()}", formatting.COLUMNS)
    )


def wrapped_row(columns: str, text: str) -> list[str]:
    """Return the lines of a table row whose last column is wrapped text."""
    found = textwrap.wrap(text, formatting.COLUMNS - len(columns), break_on_hyphens=False)
    return [columns + found[0], *(" " * len(columns) + line for line in found[1:])]


def _table(plan: PipelinePlan, layers: LayerGraph) -> Iterator[str]:
    yield f"{'stage':>5}  {'forward':>9}  {'backward':>9}  {'parameters':>10}  {'sends':>9}  layers"
    for index, stage in enumerate(plan.stages):
        own = slice(stage.start, stage.stop)
        sends = 0.0 if stage.stop == len(layers.layers) else layers.activation_bytes[stage.stop - 1]
        forward, backward = stage_seconds(layers, stage)
        columns = (
            f"{index:>5}  {formatting.time(forward):>9}  {formatting.time(backward):>9}"
            f"  {formatting.size(float(layers.parameter_bytes[own].sum())):>10}"
            f"  {formatting.size(sends):>9}  "
        )
        yield from wrapped_row(columns, _stage(plan, index))
    yield (
        "of one microbatch, divided among the stage's ranks; what is sent is of one microbatch, one"
        " way"
    )


def _reductions(num_groups: Sequence[int]) -> Iterator[str]:
    for stage, count in enumerate(num_groups):
        if count:
            yield (
                f"stage {stage} all-reduces its gradients in {count} groups, as LIBRA plans them,"
                " within its last backward"
            )


def _charts(
    plan: PipelinePlan, layers: LayerGraph, cluster: Cluster, measured: MeasuredLayers | None
) -> Iterator[str]:
    """Yield the predicted and the measured chart on one scale."""
    both = None if measured is None else (measured.bars, measured.seconds)
    found = pictures(layers, plan, cluster, both)
    longest = max(picture.seconds for picture in found)
    ranks = [rank for stage in plan.stages for rank in stage.devices]
    for picture in found:
        yield f"{picture.title}, {formatting.time(picture.seconds)} of {formatting.time(longest)}:"
        for rank, line in chart(picture.bars, ranks, longest, _CHART_COLUMNS).items():
            yield f"rank {rank:<4} {line.rstrip('.')}"
        yield from _idle(plan, picture)
    yield LEGEND


def _idle(plan: PipelinePlan, picture: PipelineGantt) -> Iterator[str]:
    """Yield the idle share and the longest bubble of each rank."""
    for entry in idle(plan, picture):
        if entry.longest is not None:
            yield (
                f"rank {entry.device} computes nothing for {formatting.percent(entry.share)};"
                f" longest {formatting.time(entry.longest.seconds)}, for {entry.longest.why}"
            )


_NAMES = ("pipeline", "layers", "cluster", "trace")


def write_planned(
    layers: LayerGraph,
    cluster: Cluster,
    plan: PipelinePlan,
    logdir: Path,
    function: str,
    log: logging.Logger,
) -> None:
    """Write pipeline.json, layers.json and cluster.json, which `tf-libra pipeline` reads.

    Args:
        layers: measured layers.
        cluster: measured link rates.
        plan: the pipeline that was planned from them.
        logdir: the log directory.
        function: name of the training function; the first one in a process has the plain names.
        log: receives a warning if a file cannot be written.
    """
    paths, message = documents(logdir, function, _NAMES)
    if message:
        log.info("%s", message)
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
    """Write the predicted and measured activity of every rank: trace.json and pipeline.svg.

    The trace has Chrome's format, for Perfetto and other viewers. The picture requires Matplotlib
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
    events = [event for picture in found for event in _events(picture.title, picture.bars)]
    write({paths["trace"]: json.dumps({"traceEvents": events})}, log)

    def plot() -> None:
        from tf_libra.model_parallel.simulation.plots import plot_devices

        plot_devices(
            [(picture.title, picture.bars, picture.seconds) for picture in found],
            paths["pipeline"].with_suffix(".svg"),
        )

    draw("pipeline.svg", plot, log)


def _events(what: str, bars: Iterable[Bar]) -> list[dict[str, Any]]:
    """Return complete events in microseconds; `what` names their process in the trace."""
    return [
        {
            "name": bar.kind if bar.microbatch is None else f"{bar.kind} {bar.microbatch}",
            "cat": bar.kind,
            "ph": "X",
            "pid": what,
            "tid": f"rank {bar.device}",
            "ts": 1e6 * bar.start_seconds,
            "dur": 1e6 * (bar.stop_seconds - bar.start_seconds),
            "args": {"stage": bar.stage, "microbatch": bar.microbatch},
        }
        for bar in bars
    ]
