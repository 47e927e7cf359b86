"""Pictures of the evaluations, as SVG. Needs Matplotlib."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from benchmarks.paper.evaluation import ASC_PAPER, IDEAL, AscRow, Row, per_node
from benchmarks.paper.parameters import Parameters
from benchmarks.paper.sensitivity import Sweep

_COLOURS = {
    "SynEASGD": "#9d755d",
    "Horovod": "#e45756",
    "MG-WFBP": "#f58518",
    "LIBRA-M": "#72b7b2",
    "LIBRA": "#4c78a8",
    IDEAL: "#bab0ac",
}


def save(figure: Figure, path: Path) -> None:
    # The same numbers give the same file.
    with rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none", "path.simplify": False}):
        FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def grid(count: int, columns: int, width: float, height: float) -> tuple[Figure, list]:
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for unused in axes.flat[count:]:
        unused.set_axis_off()
    return figure, list(axes.flat[:count])


def _by_network(rows: Sequence[Row]) -> dict[str, list[Row]]:
    networks: dict[str, list[Row]] = {}
    for row in rows:
        networks.setdefault(row.network, []).append(row)
    return networks


def throughput(rows: Sequence[Row], path: Path) -> None:
    """LIBRA's Fig. 6: bars of samples per second, one panel per network."""
    networks = _by_network(rows)
    figure, panels = grid(len(networks), 4, 3.0, 2.8)
    for axes, (network, bars) in zip(panels, networks.items(), strict=True):
        names = [row.strategy for row in bars]
        values = [row.throughput for row in bars]
        shown = axes.bar(names, values, color=[_COLOURS[name] for name in names])
        axes.bar_label(shown, fmt="%.0f", fontsize=7)
        axes.set_ylim(0.7 * min(values), 1.03 * max(values))
        axes.set_title(f"{network}, {bars[0].workers} nodes", fontsize=9)
        axes.tick_params(axis="x", rotation=45, labelsize=8)
        axes.tick_params(axis="y", labelsize=7)
    panels[0].set_ylabel("samples per second (axis cut)", fontsize=8)
    save(figure, path)


def breakdown(rows: Sequence[Row], path: Path) -> None:
    """LIBRA's Figs. 7 and 8: computation, residual, and the sum of all communication."""
    networks = _by_network(rows)
    figure, panels = grid(len(networks), 4, 3.0, 2.8)
    for axes, (network, bars) in zip(panels, networks.items(), strict=True):
        names = [row.strategy for row in bars]
        computed = [1e3 * row.computation_seconds for row in bars]
        axes.bar(names, computed, color="#4c78a8", label="computation")
        residual = [1e3 * row.residual_seconds for row in bars]
        axes.bar(names, residual, bottom=computed, color="#f58518", label="residual communication")
        sent = [1e3 * row.communication_seconds for row in bars]
        axes.plot(names, sent, "kx", markersize=5, label="all communication")
        axes.set_title(network, fontsize=9)
        axes.tick_params(axis="x", rotation=45, labelsize=8)
        axes.tick_params(axis="y", labelsize=7)
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("ms of backward", fontsize=8)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=7, ncols=len(labels), loc="outside upper center")
    save(figure, path)


def scale(parameters: Parameters, rows: Sequence[Row], path: Path) -> None:
    """LIBRA's Fig. 9: throughput per node, over that of one node alone."""
    networks = _by_network(rows)
    figure, panels = grid(len(networks), 4, 3.0, 2.8)
    for axes, (network, points) in zip(panels, networks.items(), strict=True):
        for name, colour in _COLOURS.items():
            line = [row for row in points if row.strategy == name]
            axes.plot(
                [row.workers for row in line],
                [per_node(parameters, row) for row in line],
                color=colour,
                marker="o",
                markersize=2.5,
                linewidth=1,
                linestyle="--" if name == IDEAL else "-",
                label=name,
            )
        axes.set_xscale("log", base=2)
        clusters = sorted({row.workers for row in points})
        axes.set_xticks(clusters, map(str, clusters), rotation=45)
        axes.minorticks_off()
        axes.set_title(network, fontsize=9)
        axes.set_xlabel("nodes", fontsize=8)
        axes.tick_params(labelsize=7)
    panels[0].set_ylabel("throughput per node / single node's", fontsize=8)
    panels[0].legend(fontsize=6)
    save(figure, path)


def sensitivity(sweeps: Sequence[Sweep], path: Path) -> None:
    """Draws MG-WFBP's backward time over LIBRA's, as one parameter moves."""
    figure, panels = grid(len(sweeps), 3, 3.6, 2.6)
    for axes, sweep in zip(panels, sweeps, strict=True):
        for network, gains in sweep.gains.items():
            axes.plot(sweep.values, gains, marker="o", markersize=2.5, linewidth=1, label=network)
        axes.axvline(sweep.now, color="grey", linewidth=0.8, linestyle=":")
        if sweep.logarithmic:
            axes.set_xscale("log", base=2)
            axes.set_xticks(sweep.values, [f"{value:.4g}" for value in sweep.values])
            axes.minorticks_off()
        axes.set_xlabel(sweep.parameter, fontsize=8)
        axes.tick_params(labelsize=6)
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("MG-WFBP above LIBRA, %", fontsize=8)
    panels[0].legend(fontsize=6)
    save(figure, path)


def iterations(rows: Sequence[AscRow], path: Path) -> None:
    """ASC-WFBP's Table IV as bars: ours full, the paper's hatched."""
    figure, panels = grid(len(rows), 4, 3.0, 2.4)
    for axes, row in zip(panels, rows, strict=True):
        paper = ASC_PAPER[row.network]
        names = ["WFBP", "MG-WFBP", "ASC-WFBP"]
        positions = range(3)
        axes.bar([p - 0.2 for p in positions], _times(row), 0.38, color="#4c78a8", label="computed")
        axes.bar(
            [p + 0.2 for p in positions], _times(paper), 0.38, color="#dddddd", hatch="//",
            label="the paper's",
        )  # fmt: skip
        axes.set_xticks(positions, names, fontsize=8)
        axes.set_title(row.network, fontsize=9)
        axes.tick_params(axis="y", labelsize=7)
    panels[0].set_ylabel("ms per iteration", fontsize=8)
    panels[0].legend(fontsize=6)
    save(figure, path)


def _times(row: AscRow) -> list[float]:
    return [1e3 * row.wfbp, 1e3 * row.mg_wfbp, 1e3 * row.asc_wfbp]
