"""Text and files about a burst plan."""

import logging
import textwrap
from pathlib import Path

from tf_libra.internal import formatting
from tf_libra.model_parallel.execution.step_executor import StepExecutor
from tf_libra.model_parallel.profiling.step_measurement import MeasuredLayers
from tf_libra.model_parallel.reporting.pipeline_report import against_one_worker, wrapped_row
from tf_libra.model_parallel.simulation.burst_gantt import layers_of, named, pictures, stages_of
from tf_libra.planning.one_worker import OneWorkerComparison
from tf_libra.reporting.logdir_files import documents, draw, write
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.scaling_profile import ScalingProfile

_BAR = 8


def in_a_line(plan: BurstPlan) -> str:
    """Return the ranks of each stage and the predicted time, in one line."""
    stages = [
        f"{named(plan, stage)} on {_ranks(stage.first_device, stage.num_devices)}"
        for stage in stages_of(plan)
    ]
    return f"predicted {formatting.time(plan.iteration_seconds)}: {'; '.join(stages)}"


def describe_measured(plan: BurstPlan, measured: MeasuredLayers) -> str:
    """Return the measured and the predicted time of an iteration, in one line."""
    return (
        f"an iteration takes {formatting.time(measured.seconds)}; predicted:"
        f" {formatting.time(plan.iteration_seconds)}"
    )


def _ranks(first: int, count: int) -> str:
    return f"rank {first}" if count == 1 else f"ranks {first} to {first + count - 1}"


def explained(
    name: str,
    plan: BurstPlan,
    execution: StepExecutor,
    measured: MeasuredLayers | None = None,
    compared: OneWorkerComparison | None = None,
) -> str:
    """Return the plan as text, with devices per layer as bars and times of this rank's last step.

    Args:
        name: name of the training function.
        plan: burst plan.
        execution: stage executor of this rank.
        measured: measured iteration; None before a measurement.
        compared: comparison with one worker; None if it is unknown.
    """
    limit = "without a limit on amplification"
    if plan.max_amplification is not None:
        limit = f"amplification at most {plan.max_amplification:g}"
    lines = [
        f"{name}: a burst plan under {plan.strategy}, {limit}",
        *against_one_worker(compared),
        *([] if measured is None else [f"measured iteration: {formatting.time(measured.seconds)}"]),
        f"predicted iteration: {formatting.time(plan.iteration_seconds)},"
        f" {formatting.time(plan.device_seconds)} of all ranks together",
        "",
        f"{'ranks':>5}  {'comes in':>10}  {'computes':>10}  {'all-reduce':>10}"
        f"  {'amplified':>9}  layers",
    ]
    most = max(plan.num_devices)
    for layer in layers_of(plan):
        bar = "#" * max(1, _BAR * layer.num_devices // most)
        location = f"from rank {layer.first_device} on: " if layer.first_device else ""
        columns = (
            f"{layer.num_devices:>5}  {formatting.time(layer.comes_in):>10} "
            f" {formatting.time(layer.computes):>10}"
            f"  {formatting.time(layer.all_reduce):>10}  {layer.amplification:>9.2f}"
            f"  {bar:<{_BAR}}  "
        )
        lines += wrapped_row(columns, f"{location}{layer.name}")
    lines += ["", "of the whole batch, forward and backward"]
    both = None if measured is None else (measured.bars, measured.seconds)
    for picture in pictures(plan, both):
        idle = ", ".join(map(formatting.time, picture.idle_seconds))
        text = f"{picture.title}: from rank 0 on, ranks are idle for {idle}"
        lines += textwrap.wrap(text, formatting.COLUMNS)
    busy = sum(
        task_span.stop_seconds - task_span.start_seconds for task_span in execution.task_spans
    )
    if execution.task_spans:
        end = max(task_span.stop_seconds for task_span in execution.task_spans)
        lines.append(
            f"this rank computed {formatting.time(busy)} of the {formatting.time(end)} until its"
            " last layer"
            " of the last step; else it waited"
        )
    else:
        lines.append("this rank has no layer: it only updates what no layer has")
    for note in plan.notes:
        lines += textwrap.wrap(f"note: {note}", formatting.COLUMNS)
    return "\n".join(line[: formatting.COLUMNS] for line in lines)


_NAMES = ("burst", "scaling")


def write_planned(
    plan: BurstPlan,
    profile: ScalingProfile | None,
    logdir: Path,
    function: str,
    log: logging.Logger,
) -> None:
    """Write burst.json and scaling.json, which `tf-libra burst` reads, and burst.svg.

    The picture requires Matplotlib and is left out without it.

    Args:
        plan: the burst plan.
        profile: measured layers; None for a user-provided plan.
        logdir: the log directory.
        function: name of the training function; the first one in a process has the plain names.
        log: receives a warning if a file cannot be written.
    """
    paths, message = documents(logdir, function, _NAMES)
    if message:
        log.info("%s", message)
    texts = {paths["burst"]: plan.to_json()}
    if profile is not None:
        texts[paths["scaling"]] = profile.to_json()
    write(texts, log)

    def plot() -> None:
        from tf_libra.model_parallel.simulation.plots import plot_burst

        plot_burst([(plan.strategy, plan)], paths["burst"].with_suffix(".svg"))

    draw("burst.svg", plot, log)
