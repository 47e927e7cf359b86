"""Plots of burst plans. Imports Matplotlib at first use."""

import os
from collections.abc import Sequence

from tf_libra.internal import formatting
from tf_libra.simulation.viz.figure_io import save
from tf_libra.specs.burst import BurstPlan

_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#bab0ac")
_KINDS = {"compute": "#4c78a8", "synchronize": "#f58518", "transition": "#e45756"}


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
        for kind, colour in _KINDS.items():
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
    return [_COLOURS[index % len(_COLOURS)] for index in range(count)]
