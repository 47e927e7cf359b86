"""Measures bursts with a background job: training and background on one machine.

    python -m benchmarks.bursts --np 2 --model vgg --json bursts.json

Six ways take turns in blocks, all in one job, every rank on a core of its own (DeepPool, Fig. 9, at
the scale of this machine):

- `data parallel`: `strategy="libra"`, all layers on all ranks; also with a concurrent background.
- `static partition`: rank 0 trains on all samples by itself, the other ranks have the background.
- `bursts`: `strategies.DeepPool`, layers on as many ranks as they are worth; and with a background.
- `background`: it alone, on all ranks.

The background multiplies matrices (`benchmarks/jobs/counting.py`); during training it is that of
`tf_libra.background`, under the kernel's idle scheduling and paced.

What a number means: a step's time is the mean of a block's steps on rank 0; background steps are
counted on all ranks; both are medians over the rounds. `slowdown` is against the same training
without a background, paired by rounds. `capacity` is the sum of what training makes, as a share of
data parallel training alone, and what the background makes, as a share of it alone.

The JSON: {"ways": {name: {"step_seconds", "background_per_second", "slowdown", "capacity"}},
"rounds": [{name: {"step_seconds", "background_per_second"}}], "plan", "explained", "settings",
"machine", "versions"}.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks.jobs.job import BurstsJob
from benchmarks.machine import machine, versions
from benchmarks.placing import Placing, WorkersFailedError

FLAGS = flags.FLAGS if __name__ == "__main__" else flags.FlagValues()
_PLACING = Placing(FLAGS)
flags.DEFINE_integer("rounds", 5, "Blocks of each way.", lower_bound=1, flag_values=FLAGS)
flags.DEFINE_integer("steps", 96, "Of a block.", lower_bound=1, flag_values=FLAGS)
flags.DEFINE_float("amplification", 1.5, "Limit of bursts.", lower_bound=1, flag_values=FLAGS)
flags.DEFINE_float("slowdown", 0.05, "Limit of the background.", 0.001, flag_values=FLAGS)
flags.DEFINE_float("seconds", 3.0, "Of the background alone.", 0.1, flag_values=FLAGS)

_ALONE = {"data parallel, background": "data parallel", "bursts, background": "bursts"}
_WAYS = (
    "data parallel",
    "data parallel, background",
    "static partition",
    "bursts",
    "bursts, background",
    "background",
)


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"flags only, got {argv[1]!r}")
    here = machine()
    try:
        measured = _PLACING.measured(
            "bursts",
            BurstsJob,
            rounds=FLAGS.rounds,
            steps=FLAGS.steps,
            max_amplification=FLAGS.amplification,
            max_slowdown=FLAGS.slowdown,
            background_seconds=FLAGS.seconds,
        )
    except WorkersFailedError as error:
        print(f"bursts: {error}", file=sys.stderr)
        return 1
    requested = {
        name: FLAGS[name].value for name in ("rounds", "steps", "amplification", "slowdown")
    }
    document = {
        "ways": evaluate(measured["rounds"]),
        "rounds": measured["rounds"],
        "plan": measured["plan"],
        "explained": measured["explained"],
        "settings": _PLACING.settings() | requested | measured["settings"],
        "machine": here,
        "versions": versions(),
    }
    _PLACING.write(document)
    print(table(document))
    return 0


def evaluate(
    rounds: Sequence[Mapping[str, Mapping[str, float]]],
) -> dict[str, dict[str, float | None]]:
    """Returns each way's medians over the rounds, its slowdown and its share of the capacity.

    Args:
        rounds: of every way, seconds of a step and background steps per second.
    """
    found: dict[str, dict[str, float | None]] = {}
    for name in _WAYS:
        trains = name != "background"
        seconds = [fields[name]["step_seconds"] for fields in rounds]
        per_second = [round_[name]["background_per_second"] for round_ in rounds]
        slowdown = None
        if name in _ALONE:
            alone = [round_[_ALONE[name]]["step_seconds"] for round_ in rounds]
            slowdown = float(np.median(np.divide(seconds, alone))) - 1
        capacity = [
            (
                round_["data parallel"]["step_seconds"] / round_[name]["step_seconds"]
                if trains
                else 0.0
            )
            + round_[name]["background_per_second"] / round_["background"]["background_per_second"]
            for round_ in rounds
        ]
        found[name] = {
            "step_seconds": float(np.median(seconds)) if trains else None,
            "background_per_second": float(np.median(per_second)),
            "slowdown": slowdown,
            "capacity": float(np.median(capacity)),
        }
    return found


def table(document: Mapping[str, Any]) -> str:
    """Ways by rows."""
    settings = document["settings"]
    lines = [
        f"{settings['model']}, {settings['np']} workers, {settings['network']},"
        f" {settings['rounds']} rounds of {settings['steps']} steps,"
        f" {settings['batch_per_rank']} samples per rank",
        "",
        f"{'':27}{'step, ms':>10}{'background/s':>14}{'slowdown':>10}{'capacity':>10}",
    ]
    for name, results in document["ways"].items():
        step = "" if results["step_seconds"] is None else f"{results['step_seconds'] * 1e3:.1f}"
        slower = "" if results["slowdown"] is None else f"{results['slowdown']:+.1%}"
        lines.append(
            f"{name:27}{step:>10}{results['background_per_second']:>14.0f}{slower:>10}"
            f"{results['capacity']:>10.2f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    app.run(main)
