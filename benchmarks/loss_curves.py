"""Loss curves of three small trainings in float32, in bfloat16, and with error feedback.

    python -m benchmarks.loss_curves --out docs/images/loss_curves.svg

Two ranks of this machine train a convolutional network on handwritten digits (scikit-learn), a
small transformer that predicts the next character of Python's own documentation (`pydoc_data`), and
an embedding model that guesses the topic of a passage from its words. Each training begins with the
same weights and data in every format, once for each seed. A table of the last losses is printed.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks.jobs.loss_curves import FORMATS, TRAININGS
from tf_libra.simulation.timeline_plot import save

# The module defines flags of the process only if it runs as a program, not if it is imported.
FLAGS = flags.FLAGS if __name__ == "__main__" else flags.FlagValues()
flags.DEFINE_string("out", "", "Picture to write, PNG or SVG; none by default.", flag_values=FLAGS)
flags.DEFINE_string("json", "", "File to write all losses to; none by default.", flag_values=FLAGS)
flags.DEFINE_integer("steps", 200, "Of each training.", lower_bound=10, flag_values=FLAGS)
flags.DEFINE_integer(
    "seeds", 3, "Trainings of each model and format.", lower_bound=1, flag_values=FLAGS
)
_LAST = 0.1  # share of the steps whose mean is the last loss


def train(steps: int, seeds: int) -> dict[str, dict[str, list[list[float]]]]:
    """Returns losses by model, format, seed and step."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "losses.json"
        job = ["-m", "benchmarks.jobs.loss_curves", str(path), str(steps), str(seeds)]
        launcher = [sys.executable, "-m", "tf_libra.cli", "run", "--no-horovod", "-np", "2"]
        subprocess.run([*launcher, sys.executable, *job], check=True)
        losses: dict[str, dict[str, list[list[float]]]] = json.loads(path.read_text())
    return losses


def last_losses(curves: list[list[float]]) -> np.ndarray:
    """Returns the mean of each seed's last losses."""
    values = np.array(curves)
    return np.asarray(values[:, -max(1, int(_LAST * values.shape[1])) :].mean(axis=1))


def table(losses: dict[str, dict[str, list[list[float]]]]) -> str:
    """Returns the last losses as a table of Markdown: mean of all seeds, least and largest."""
    lines = [f"| training | {' | '.join(FORMATS)} |", "| --- |" + " --- |" * len(FORMATS)]
    for training, formats in losses.items():
        cells = []
        for curves in formats.values():
            last = last_losses(curves)
            cells.append(f"{last.mean():.4f} ({last.min():.4f} to {last.max():.4f})")
        lines.append(f"| {training} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(losses: dict[str, dict[str, list[list[float]]]]) -> Any:
    """Returns a figure with an axis for each training, and a line for each format and seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    for axis, (training, formats) in zip(
        figure.subplots(1, len(losses), squeeze=False)[0], losses.items(), strict=True
    ):
        for index, (name, curves) in enumerate(formats.items()):
            for seed, curve in enumerate(curves):
                width = max(1, len(curve) // 30)
                smooth = np.convolve(curve, np.ones(width) / width, mode="valid")
                steps = np.arange(len(smooth)) + width
                label = name if seed == 0 else None
                axis.plot(steps, smooth, color=f"C{index}", alpha=0.7, lw=1, label=label)
        axis.set(title=training, xlabel="step", yscale="log")
    figure.axes[0].set_ylabel("loss, moving average")
    figure.axes[0].legend(frameon=False)
    return figure


def main(_: list[str]) -> None:
    """Trains, prints the table, and writes what flags request."""
    losses = train(FLAGS.steps, FLAGS.seeds)
    assert list(losses) == list(TRAININGS)
    print(table(losses))
    if FLAGS.json:
        Path(FLAGS.json).write_text(json.dumps(losses))
    if FLAGS.out:
        save(plot(losses), FLAGS.out, salt="loss_curves")


if __name__ == "__main__":
    app.run(main)
