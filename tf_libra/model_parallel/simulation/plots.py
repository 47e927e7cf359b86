"""Plots of pipeline timelines and burst plans. Imports Matplotlib at first use."""

import os
from collections.abc import Sequence

from tf_libra.internal import formatting
from tf_libra.model_parallel.simulation.pipeline import PipelineTimeline
from tf_libra.model_parallel.simulation.pipeline_gantt import COMPUTING, KINDS, Bar
from tf_libra.simulation.timeline_plot import save
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.pipeline import PipelinePlan

_COLOURS = {
    "step": "#72b7b2",
    "forward": "#4c78a8",
    "backward": "#54a24b",
    "forward_transfer": "#9ecae9",
    "backward_transfer": "#a8d8a0",
    "gradients": "#e45756",
    "all_reduce": "#f58518",
    "update": "#b279a2",
}
_PLAN_COLOURS = (
    "#4c78a8",
    "#f58518",
    "#54a24b",
    "#e45756",
    "#72b7b2",
    "#b279a2",
    "#9d755d",
    "#bab0ac",
)
_SPAN_COLOURS = {"compute": "#4c78a8", "synchronize": "#f58518", "transition": "#e45756"}


def plot_pipelines(
    pictures: Sequence[tuple[str, PipelinePlan, PipelineTimeline]], path: str | os.PathLike[str]
) -> None:
    """Write timelines, stacked on one time axis, as an SVG picture.

    Each stage has a row: computation above, transfers and all-reduces below.

    Raises:
      ImportError: Matplotlib is not installed.
      OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = [len(plan.stages) for _, plan, _ in pictures]
    heights = [0.9 + 0.32 * count for count in rows]
    figure = Figure(figsize=(12, 0.5 + sum(heights)), layout="constrained")
    panels = figure.subplots(len(pictures), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, plan, timeline) in zip(panels, pictures, strict=True):
        for kind, colour in _COLOURS.items():
            extent = (0.05, 0.55) if kind in COMPUTING else (0.62, 0.3)
            for stage in range(len(plan.stages)):
                bars = [
                    (1e3 * block.start_seconds, 1e3 * block.seconds)
                    for block in timeline.blocks
                    if block.kind == kind and block.stage == stage
                ]
                axes.broken_barh(
                    bars, (stage + extent[0], extent[1]), color=colour, edgecolor="white", lw=0.3
                )
        labels = [_devices(stage.devices) for stage in plan.stages]
        axes.set_yticks([0.5 + stage for stage in range(len(labels))], labels, fontsize=7)
        axes.set_ylim(len(labels), 0)
        axes.set_title(
            f"{title}: {len(labels)} stages, {formatting.time(timeline.iteration_seconds)}",
            fontsize=10,
        )
    longest = max(timeline.iteration_seconds for *_, timeline in pictures)
    panels[-1].set_xlim(0, 1e3 * longest or 1)
    panels[-1].set_xlabel("ms since the start of the iteration")
    handles = [
        Patch(color=colour, label=kind.replace("_", " ")) for kind, colour in _COLOURS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8)
    save(figure, path)


def plot_devices(
    pictures: Sequence[tuple[str, Sequence[Bar], float]], path: str | os.PathLike[str]
) -> None:
    """Write the activity of each device, stacked on one time axis, as a picture.

    Args:
      pictures: titles, activities of devices, and seconds of the iteration.
      path: output file; `.png` gives PNG, else SVG.

    Raises:
      ImportError: Matplotlib is not installed.
      OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    devices = sorted({bar.device for _, bars, _ in pictures for bar in bars})
    height = 0.6 + 0.3 * len(devices)
    figure = Figure(figsize=(12, 0.6 + height * len(pictures)), layout="constrained")
    panels = figure.subplots(len(pictures), sharex=True, squeeze=False)[:, 0]
    for axes, (title, bars, seconds) in zip(panels, pictures, strict=True):
        for bar in bars:
            low, thick = (0.05, 0.55) if bar.computes else (0.62, 0.3)
            span = (1e3 * bar.start_seconds, 1e3 * (bar.stop_seconds - bar.start_seconds))
            extent = (devices.index(bar.device) + low, thick)
            colour = _COLOURS[bar.kind]
            axes.broken_barh([span], extent, color=colour, edgecolor="white", lw=0.3)
        labels = [str(device) for device in devices]
        axes.set_yticks([0.5 + row for row in range(len(labels))], labels, fontsize=8)
        axes.set_ylim(len(labels), 0)
        axes.set_title(f"{title}: {formatting.time(seconds)}", fontsize=10)
    panels[-1].set_xlim(0, 1e3 * max(seconds for *_, seconds in pictures) or 1)
    panels[-1].set_xlabel("ms since the start of the iteration")
    handles = [Patch(color=_COLOURS[kind], label=kind.replace("_", " ")) for kind in KINDS]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8)
    save(figure, path)


def _devices(devices: Sequence[int]) -> str:
    """Format device numbers in ascending ranges, such as "0-3 8"."""
    texts = []
    numbers = sorted(devices)
    first = numbers[0]
    for number, following in zip(numbers, [*numbers[1:], -1], strict=True):
        if following != number + 1:
            texts.append(str(first) if first == number else f"{first}-{number}")
            first = following
    shown = " ".join(texts)
    return shown if len(shown) <= 24 else f"{shown[:20]} ..."


def plot_burst(
    plans: Sequence[tuple[str, BurstPlan]], path: str | os.PathLike[str], *, salt: str | None = None
) -> None:
    """Write plans of the same layers as an SVG picture.

    The first panel shows the devices of each layer as a step curve per plan. The next panels show
    the busy times of the devices, one panel per plan: white is idle, grey is after the iteration.

    Args:
      plans: titles and plans, at least one.
      path: output file.
      salt: makes the file reproducible for the same plans; None: element ids are random.

    Raises:
      ValueError: no plan.
      ImportError: Matplotlib is not installed.
      OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    if not plans:
        raise ValueError("plans must hold at least one plan, got none")
    figure = Figure(figsize=(12, 3 + 1.8 * len(plans)), layout="constrained")
    rows = figure.subplots(1 + len(plans), 1, height_ratios=[1.6] + [1] * len(plans))
    layers = len(plans[0][1].layer_names)
    for (title, plan), colour in zip(plans, _cycle(len(plans)), strict=True):
        label = f"{title}: {formatting.time(plan.iteration_seconds)}"
        rows[0].step(range(layers), plan.num_devices, where="mid", label=label, color=colour)
    rows[0].set_yscale("log", base=2)
    rows[0].set_yticks(plans[0][1].device_counts, [str(n) for n in plans[0][1].device_counts])
    rows[0].xaxis.get_major_locator().set_params(integer=True)
    rows[0].set_xlim(-0.5, layers - 0.5)
    rows[0].set_xlabel("layer")
    rows[0].set_ylabel("devices")
    rows[0].legend(fontsize=8)
    longest = max(plan.iteration_seconds for _, plan in plans)
    for axes, (title, plan) in zip(rows[1:], plans, strict=True):
        for kind, colour in _SPAN_COLOURS.items():
            for span in plan.spans:
                if span.kind != kind or not span.seconds:
                    continue
                axes.broken_barh(
                    [(1e3 * span.start_seconds, 1e3 * span.seconds)],
                    (plan.first_devices[span.layer], plan.num_devices[span.layer]),
                    facecolors=colour,
                )
        devices = plan.device_counts[-1]
        total = devices * plan.iteration_seconds
        idle = sum(plan.idle_seconds) / total if total else 0.0
        axes.set_xlim(0, 1e3 * longest or 1)
        axes.axvspan(1e3 * plan.iteration_seconds, 1e3 * longest, color="#dddddd")
        axes.set_ylim(devices, 0)
        axes.set_ylabel("device", fontsize=8)
        axes.set_title(
            f"{title}: devices idle for {formatting.percent(idle)} of the iteration", fontsize=9
        )
    rows[-1].set_xlabel("ms (blue: computation, orange: all-reduce, red: transition)")
    save(figure, path, salt)


def _cycle(count: int) -> list[str]:
    return [_PLAN_COLOURS[index % len(_PLAN_COLOURS)] for index in range(count)]
