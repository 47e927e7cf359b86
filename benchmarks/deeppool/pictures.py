"""Pictures of the evaluation, as SVG. Needs Matplotlib."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.deeppool.evaluation import Row, Scaled
from benchmarks.deeppool.models import TITLES
from benchmarks.paper.pictures import grid, save

_FOREGROUND, _BACKGROUND = "#4c78a8", "#f58518"
_STRATEGIES = {
    "limit": "#bab0ac",
    "DP": "#e45756",
    "BP, 2": "#72b7b2",
    "BP, 4": "#54a24b",
    "BP, no limit": "#4c78a8",
}


def _networks(rows: Sequence[Row] | Sequence[Scaled]) -> list[str]:
    return list(dict.fromkeys(row.network for row in rows))


def throughput(rows: Sequence[Row], path: Path) -> None:
    """Fig. 9: foreground and background, stacked."""
    networks = _networks(rows)
    figure, panels = grid(len(networks), 2, 4.5, 3.2)
    for axes, network in zip(panels, networks, strict=True):
        bars = [row for row in rows if row.network == network]
        names = [row.scenario for row in bars]
        first = [row.foreground for row in bars]
        axes.bar(names, first, color=_FOREGROUND, label="foreground")
        back = [row.background for row in bars]
        axes.bar(names, back, bottom=first, color=_BACKGROUND, label="background")
        axes.set_title(f"{TITLES[network]}, 8 GPUs", fontsize=9)
        axes.tick_params(labelsize=8)
    panels[0].set_ylabel("samples per second", fontsize=8)
    panels[0].legend(fontsize=8)
    save(figure, path)


def operating_points(rows: Sequence[Row], path: Path) -> None:
    """Fig. 10: the foreground's throughput over the cluster's."""
    networks = _networks(rows)
    figure, panels = grid(len(networks), 2, 4.5, 3.4)
    for axes, network in zip(panels, networks, strict=True):
        points = [row for row in rows if row.network == network]
        alone = next(row for row in points if row.scenario.startswith("partition 1 "))
        for prefix, marker, colour in (("BP", "o", _FOREGROUND), ("partition", "s", _BACKGROUND)):
            chosen = [row for row in points if row.scenario.startswith(prefix)]
            axes.plot(
                [row.total for row in chosen],
                [row.foreground / alone.foreground for row in chosen],
                marker,
                color=colour,
                label="bursts and background" if prefix == "BP" else "static partition",
            )
        axes.set_title(f"{TITLES[network]}, 8 GPUs", fontsize=9)
        axes.set_xlabel("cluster, samples per second", fontsize=8)
        axes.tick_params(labelsize=8)
    panels[0].set_ylabel("foreground's speedup over one GPU", fontsize=8)
    panels[0].legend(fontsize=8)
    save(figure, path)


def mechanisms(rows: Sequence[Row], path: Path) -> None:
    """Fig. 11: one bar per step, from the first below to the last above."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.add_subplot()
    names = [row.scenario for row in rows]
    first = [row.foreground for row in rows]
    axes.barh(names, first, color=_FOREGROUND, label="foreground")
    back = [row.background for row in rows]
    axes.barh(names, back, left=first, color=_BACKGROUND, label="background")
    axes.set_xlabel("samples per second")
    axes.legend(fontsize=8)
    save(figure, path)


def scale(rows: Sequence[Scaled], path: Path) -> None:
    """Speedups over one GPU, and the share of the cluster that they leave idle."""
    networks = _networks(rows)
    figure, panels = grid(2 * len(networks), 2, 4.5, 3.0)
    for column, network in enumerate(networks):
        for strategy, colour in _STRATEGIES.items():
            chosen = [r for r in rows if r.network == network and r.strategy == strategy]
            gpus = [row.gpus for row in chosen]
            label = "strong scaling limit" if strategy == "limit" else strategy
            style = "--" if strategy == "limit" else "o-"
            speedups = [row.speedup for row in chosen]
            panels[column].plot(gpus, speedups, style, color=colour, label=label, markersize=3)
            if strategy != "limit":
                idle = [100 * row.idle_share for row in chosen]
                panels[2 + column].plot(gpus, idle, style, color=colour, markersize=3)
        panels[column].set_title(TITLES[network], fontsize=9)
        panels[column].set_yscale("log", base=2)
        for axes in (panels[column], panels[2 + column]):
            axes.set_xscale("log", base=2)
            axes.tick_params(labelsize=8)
        panels[2 + column].set_xlabel("GPUs", fontsize=8)
    panels[0].set_ylabel("speedup over one GPU", fontsize=8)
    panels[2].set_ylabel("GPUs idle, %", fontsize=8)
    panels[0].legend(fontsize=7)
    save(figure, path)
