"""Plot of a data-parallel timeline, and output of figures. Imports Matplotlib at first use."""

import os
from pathlib import Path
from typing import Any

from tf_libra.internal import formatting
from tf_libra.simulation.timeline import GroupSpan, Timeline
from tf_libra.specs.plan import Plan, TensorGroup

_ALONE, _OVERLAPPED = "#4c78a8", "#9ecae9"
_GATHERS = "#72b7b2"
_STREAMS = ("#f58518", "#e45756", "#b279a2", "#54a24b")


def save(figure: Any, path: str | os.PathLike[str], salt: str | None = None) -> None:
    """Write a figure as PNG or SVG by the file's suffix; a salt makes an SVG reproducible.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib import rc_context

    if Path(path).suffix == ".png":
        figure.savefig(path, format="png", dpi=160, metadata={"Software": None})
        return
    with rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def plot_timeline(plan: Plan, timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Write the timeline of a plan as a picture (`.svg`, `.png`) over milliseconds.

    Raises:
        ImportError: Matplotlib is not installed.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 2.6), layout="constrained")
    axes = figure.add_subplot()
    for stage in timeline.stages:
        begin = 1e3 * stage.start_seconds
        overlapped = 1e3 * stage.overlap_seconds
        bars = [(begin, overlapped), (begin + overlapped, 1e3 * stage.residual_compute_seconds)]
        axes.broken_barh(bars, (0.1, 0.8), facecolors=(_OVERLAPPED, _ALONE), edgecolor="white")
    rows = {stream: row for row, stream in enumerate(sorted({g.stream for g in plan.groups}))}
    for index, (group, span) in enumerate(zip(plan.groups, timeline.groups, strict=True)):
        color = _STREAMS[rows[group.stream] % len(_STREAMS)]
        _plot_span(axes, span, 1 + rows[group.stream], color)
        _label_span(axes, span, 1 + rows[group.stream], index, group, timeline)
    operation = "reduce-scatter" if plan.gathers else "all-reduce"
    names = [operation] if len(rows) == 1 else [f"{operation}, stream {i}" for i in rows]
    if plan.gathers:
        names.append("gather")
        _plot_gathers(axes, plan, timeline, len(names))
    axes.set_yticks([0.5 + row for row in range(len(names) + 1)], ["computation", *names])
    axes.invert_yaxis()
    last = max((span.end_seconds for span in timeline.forward), default=timeline.backward_seconds)
    axes.set_xlim(0, 1e3 * last or 1)
    axes.set_xlabel("ms since the start of backward (light: overlapped computation)")
    axes.set_title(
        f"{plan.strategy}: {len(plan.groups)} groups, {formatting.time(timeline.backward_seconds)}"
    )
    save(figure, path)


def _plot_gathers(axes: Any, plan: Plan, timeline: Timeline, row: int) -> None:
    """Plot the gathers in a row, the next forward pass, and the boundary between both steps."""
    for index, (gather, span) in enumerate(zip(plan.gathers, timeline.gathers, strict=True)):
        _plot_span(axes, timeline.forward[index], 0, _ALONE)
        _plot_span(axes, span, row, _GATHERS)
        _label_span(axes, span, row, index, gather, timeline)
    axes.axvline(1e3 * timeline.boundary_seconds, color="black", linewidth=1, linestyle="--")


def _plot_span(axes: Any, span: GroupSpan, row: int, color: str) -> None:
    begin, length = 1e3 * span.start_seconds, 1e3 * (span.end_seconds - span.start_seconds)
    axes.broken_barh([(begin, length)], (row + 0.1, 0.8), color=color, edgecolor="white")


def _label_span(
    axes: Any, span: GroupSpan, row: int, index: int, group: TensorGroup, timeline: Timeline
) -> None:
    """Write a group's index and threads into its span, if that is wide enough."""
    if span.end_seconds - span.start_seconds > 0.03 * timeline.backward_seconds:
        middle = 1e3 * (span.start_seconds + span.end_seconds) / 2
        text = f"{index}\nr={group.num_threads}"
        axes.text(middle, row + 0.5, text, ha="center", va="center", fontsize=7)
