"""Step times with fewer bytes on the wire, as ratios to steps that send all of them.

    python -m benchmarks.wire_bytes [--only "embedding, 1gbit"] [--minutes 20] [--remeasure]

For each case it runs `benchmarks.step_time` with a strategy that may send fewer bytes and with one
that may not, on a machine that should do nothing else; cases on several hosts need root
(`benchmarks/cluster.py`). After every case, its result is saved in `--json`, so that an interrupted
run can continue; `--remeasure` measures saved results again. In the end, and with `--minutes 0`
immediately, the tables of two pages in the folder `--document` are made from the saved results.

What a number means: a ratio is the median, over rounds, of the ratio of two steps of that round.
"""

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import case_flags, results
from benchmarks.case_runs import measure_cases
from benchmarks.markdown import fill, table

# The module defines flags of the process only if it runs as a program, not if it is imported.
FLAGS = flags.FLAGS if __name__ == "__main__" else flags.FlagValues()
case_flags.define(FLAGS, "wire_bytes", "docs", rounds=40)

# Pages of documentation, by the option that sends fewer bytes.
ZERO_BLOCKS, WIRE_FORMAT = "zero_blocks.md", "wire_format.md"
# Goals: largest ratios of models with zeros and without zeros, and of bfloat16.
_EMBEDDING = {None: 0.95, "5gbit": 0.35, "1gbit": 0.15}
_DENSE = {None: 1.01, "5gbit": 1.01, "1gbit": 1.01}
_BFLOAT16 = {None: 1.01, "5gbit": 0.85, "1gbit": 0.60}


@dataclass(frozen=True)
class Case:
    """Two workers with one core each that train one model.

    Attributes:
        page: page of `docs/` that shows it.
        model: see `benchmarks.models`.
        rate: of the links between hosts of one worker each; None on one host.
        strategy: sends fewer bytes.
        baseline: sends all.
        goal: largest ratio of their steps.
    """

    page: str
    model: str
    rate: str | None
    strategy: str
    baseline: str
    goal: float

    @property
    def name(self) -> str:
        """Name of the case, also its key: "embedding, 1gbit, libra"."""
        return f"{self.model}, {self.rate or 'one host'}, {self.strategy}"

    def command(self, rounds: int) -> list[str]:
        """Returns the command that measures the case and writes JSON to `--json`.

        Args:
            rounds: of a case with a large gain; others take more to tell a ratio from 1.
        """
        rounds *= 3 if self.goal > 0.9 else 1
        return [
            *(sys.executable, "-m", "benchmarks.step_time"),
            *(["--np=2"] if self.rate is None else ["--hosts=2", f"--rate={self.rate}"]),
            f"--model={self.model}",
            f"--rounds={rounds}",
            f"--strategies={self.strategy},{self.baseline}",
        ]


def all_cases() -> Iterator[Case]:
    """Yields all cases, by page."""
    for rate, goal in _EMBEDDING.items():
        yield Case(ZERO_BLOCKS, "embedding", rate, "libra", "libra:zero_blocks=send", goal)
    # The plan of `syneasgd` is the same in both.
    for model, (rate, goal) in itertools.product(("resnet20", "transformer"), _DENSE.items()):
        yield Case(ZERO_BLOCKS, model, rate, "syneasgd", "syneasgd:zero_blocks=send", goal)
    for model, (rate, goal) in itertools.product(("cnn5m", "mlp"), _BFLOAT16.items()):
        yield Case(WIRE_FORMAT, model, rate, "libra:wire_dtype=bfloat16", "libra", goal)


def summary(case: Case, document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the results to save from a document of `benchmarks.step_time`."""
    seconds = document["seconds"]
    ratio = results.spread(np.divide(seconds[case.strategy], seconds[case.baseline]))
    return {
        "strategies": {
            name: document["strategies"][name] for name in (case.strategy, case.baseline)
        },
        "ratio": ratio,
        "wire_dtype": document["plan"][case.strategy].get("wire_dtype", "float32"),
        "rounds": document["rounds"],
        "machine": document["machine"],
        "versions": document["versions"],
    }


def blocks(saved: Mapping[str, Mapping[str, Any]], page: str) -> dict[str, str]:
    """Returns the block of a page from the saved results, by case."""
    cases = [case for case in all_cases() if case.page == page and case.name in saved]
    machines = dict.fromkeys(results.machine_text(saved[case.name]) for case in cases)
    head = ("case", "all bytes, ms", "fewer, ms", "ratio", "goal", "sent as")
    rows = [(case.name, *_row(case, saved[case.name])) for case in cases]
    lines = "".join(f"\nMeasured on {machine}\n" for machine in machines)
    return {"wire_bytes": table(head, rows) + lines}


def _row(case: Case, found: Mapping[str, Any]) -> tuple[str, ...]:
    steps = (found["strategies"][name] for name in (case.baseline, case.strategy))
    milliseconds = [
        " ".join(
            f"{part}{step[f'{key}_seconds'] * 1e3:.1f}{end}"
            for key, part, end in (("median", "", ""), ("p10", "(", " to"), ("p90", "", ")"))
        )
        for step in steps
    ]
    ratio = found["ratio"]["median"]
    goal = f"{case.goal:g}, {'met' if ratio <= case.goal else 'missed'}"
    return (*milliseconds, results.ratio_text(found["ratio"]), goal, found["wire_dtype"])


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"flags only, got {argv[1]!r}")
    saved, num_failed = measure_cases("wire_bytes", FLAGS, all_cases(), summary)
    for name in (ZERO_BLOCKS, WIRE_FORMAT):
        page = Path(FLAGS.document, name)
        page.write_text(fill(page.read_text(), blocks(saved, name)))
    return 1 if num_failed else 0


if __name__ == "__main__":
    app.run(main)
