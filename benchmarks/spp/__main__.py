"""The studies of SPP's paper again, as tables and pictures.

    python -m benchmarks.spp [--document docs/spp_paper.md]

It rewrites the tables in the document, with pictures in the folder images next to it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import app, flags
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.markdown import fill, picture, table
from benchmarks.paper.pictures import save
from benchmarks.spp import parameters, studies

_COLOURS = {
    "SPP": "#4c78a8",
    "DP": "#9d755d",
    "GPipe": "#e45756",
    "PipeDream": "#f58518",
    "HetPipe": "#72b7b2",
}


def blocks(path: Path) -> dict[str, str]:
    """Computes everything, draws the pictures, and returns the document's blocks."""
    figures = {
        "microbatches": ("microbatches (Fig. 6)", studies.figure_6()),
        "bandwidth": ("bandwidth between servers (Fig. 7)", studies.figure_7()),
        "topology": ("servers x GPUs (Fig. 8)", studies.figure_8()),
        "layers": ("model (Fig. 9)", studies.figure_9()),
        "activations": ("activations (Fig. 10)", studies.figure_10()),
    }
    stages, seven = studies.figure_11(), studies.table_3()
    images = path.parent / "images"
    images.mkdir(parents=True, exist_ok=True)
    _draw_figures(figures, stages, images / "spp_studies.svg")
    _draw_models(seven, images / "spp_models.svg")
    found = {
        "sources": "\n".join(
            [
                *(f"- {text}." for text in parameters.SOURCES),
                "\nNot given, and what is taken instead:\n",
                *(f"- {text}." for text in parameters.MISSING_IN_PAPER),
                "",
            ]
        ),
        "claims": table(
            ("", "paper's", "computed"),
            studies.claims(
                seven,
                figures["bandwidth"][1],
                figures["layers"][1],
                figures["activations"][1],
                stages,
            ),
        ),
        "models": _models(seven) + picture("Seven models", images / "spp_models.svg", path),
        "studies": picture("Studies by simulation", images / "spp_studies.svg", path)
        + "\n".join(f"\n{_rows(head, rows)}" for head, rows in figures.values()),
        "stages": table(
            ("stages (Fig. 11)", "W of PRM, s", "iteration, s"),
            [
                (row.stages, f"{row.bottleneck_seconds:.3f}", f"{row.iteration_seconds:.3f}")
                for row in stages
            ],
        ),
        "sensitivity": _rows("changed", studies.sensitivity()),
        "models_sensitivity": _rows(
            "changed, BERT-large (Table III)", studies.table_3_sensitivity()
        ),
    }
    return found


def _rows(head: str, rows: Sequence[studies.Row]) -> str:
    names = list(studies.STRATEGIES)
    return table(
        (head, *(f"{name}, s" for name in names), "SPP's stages: layers x replicas"),
        [
            (row.setting, *(f"{row.seconds[name]:.3f}" for name in names), row.stages)
            for row in rows
        ],
    )


def _models(rows: Sequence[studies.Row]) -> str:
    """Table III: seconds of SPP, and how much longer the others take, in percent."""
    others = [name for name in studies.STRATEGIES if name != "SPP"]
    lines = []
    for row, (key, paper) in zip(rows, studies.TABLE_III.items(), strict=True):
        ours = row.seconds["SPP"]
        cells = [row.setting, f"{paper[0]:.3f}", f"{ours:.3f}"]
        for name, percent in zip(others, studies.TABLE_III_PERCENT[key], strict=True):
            cells.append("-" if percent is None else f"{percent:.1f}")
            cells.append(f"{100 * (row.seconds[name] / ours - 1):.0f}")
        lines.append((*cells, row.stages))
    head = ["model, testbed (Table III)", "SPP, s: paper's", "computed"]
    for name in others:
        head += [f"{name}, +%: paper's", "computed"]
    return table((*head, "SPP's stages"), lines) + "\n"


def _draw_figures(
    figures: Mapping[str, tuple[str, Sequence[studies.Row]]],
    stages: Sequence[studies.StagesRow],
    path: Path,
) -> None:
    figure = Figure(figsize=(12, 6), layout="constrained")
    panels = list(figure.subplots(2, 3).flat)
    for axes, (head, rows) in zip(panels, figures.values(), strict=False):
        _bars(axes, [row.setting.split(",")[0] for row in rows], rows)
        axes.set_title(head, fontsize=9)
    axes = panels[-1]
    counts = [row.stages for row in stages]
    axes.plot(counts, [row.iteration_seconds for row in stages], color="#4c78a8", label="iteration")
    axes.plot(
        counts, [row.bottleneck_seconds for row in stages], "--", color="#f58518", label="W of PRM"
    )
    axes.set_title("number of stages (Fig. 11)", fontsize=9)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=7)
    panels[0].legend(fontsize=7)
    panels[0].set_ylabel("s per iteration", fontsize=8)
    save(figure, path)


def _draw_models(rows: Sequence[studies.Row], path: Path) -> None:
    figure = Figure(figsize=(12, 5.5), layout="constrained")
    for axes, testbed in zip(figure.subplots(2, 1), ("1080Ti x 8", "V100 x 4"), strict=True):
        chosen = [row for row in rows if row.setting.endswith(testbed)]
        names = [row.setting.split(",")[0] for row in chosen]
        _bars(axes, names, chosen, relative=True)
        keys = [(name, testbed) for name in names]
        for position, key in enumerate(keys):
            paper = studies.TABLE_III[key]
            for index, seconds in enumerate(paper):
                if seconds is not None:
                    left = position + 0.16 * (index - 2)
                    axes.plot(left, seconds / paper[0], "_", color="black", markersize=9)
        axes.set_ylabel("iteration / SPP's", fontsize=8)
        axes.set_title(f"{testbed} (dashes: the paper's, Table III)", fontsize=9)
    figure.axes[0].legend(fontsize=7)
    save(figure, path)


def _bars(
    axes: Axes, names: Sequence[str], rows: Sequence[studies.Row], relative: bool = False
) -> None:
    for index, (name, colour) in enumerate(_COLOURS.items()):
        seconds = [row.seconds[name] / (row.seconds["SPP"] if relative else 1) for row in rows]
        positions = [position + 0.16 * (index - 2) for position in range(len(rows))]
        axes.bar(positions, seconds, 0.15, color=colour, label=name)
    axes.set_xticks(range(len(names)), names)
    axes.tick_params(labelsize=7)


def run(path: Path) -> None:
    """Computes everything and fills it into a document."""
    text = path.read_text()
    path.write_text(fill(text, blocks(path)))


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"only flags are accepted, got {argv[1:]}")
    run(Path(_DOCUMENT.value))


if __name__ == "__main__":
    _DOCUMENT = flags.DEFINE_string("document", "docs/spp_paper.md", "filled in")
    app.run(main)
