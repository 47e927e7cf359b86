"""Plots of pipeline timelines. Imports Matplotlib at first use."""

import os
from collections.abc import Sequence

from tf_libra.internal import formatting
from tf_libra.model_parallel.simulation.pipeline import PipelineTimeline
from tf_libra.model_parallel.simulation.pipeline_gantt import COMPUTING, KINDS, Bar
from tf_libra.simulation.viz.figure_io import save
from tf_libra.specs.pipeline import PipelinePlan

_COLOURS = {
    "forward": "#4c78a8",
    "backward": "#54a24b",
    "forward_transfer": "#9ecae9",
    "backward_transfer": "#a8d8a0",
    "all_reduce": "#f58518",
    "update": "#b279a2",
}


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
            place = (0.05, 0.55) if kind in COMPUTING else (0.62, 0.3)
            for stage in range(len(plan.stages)):
                bars = [
                    (1e3 * block.start_seconds, 1e3 * block.seconds)
                    for block in timeline.blocks
                    if block.kind == kind and block.stage == stage
                ]
                axes.broken_barh(
                    bars, (stage + place[0], place[1]), color=colour, edgecolor="white", lw=0.3
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
            place = (devices.index(bar.device) + low, thick)
            colour = _COLOURS[bar.kind]
            axes.broken_barh([span], place, color=colour, edgecolor="white", lw=0.3)
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
