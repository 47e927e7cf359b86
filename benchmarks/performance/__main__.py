"""The goals of performance, measured: every model and network, and docs/performance.md with it.

    python -m benchmarks.performance [--minutes 60] [--only "cnn5m, one host"]
        [--benchmarks one_worker,plain] [--remeasure]

For each case (`cases.py`) it runs `benchmarks.step_time`, and where they say something
`benchmarks.wire`, `benchmarks.truth`, one worker on the joint batch and the plain strategy of
TensorFlow, one after the other, on a machine that should do nothing else. After every one of them,
its result is saved in `--json`, so that an interrupted run can continue; `--remeasure` measures
saved results again. In the end, and with `--minutes 0` immediately, the tables of the document are
made from it.
"""

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

from benchmarks import case_flags
from benchmarks.markdown import fill
from benchmarks.measuring import measured
from benchmarks.performance import cases, document, outcome

# The module defines flags of the process only if it runs as a program, not if it is imported.
FLAGS = flags.FLAGS if __name__ == "__main__" else flags.FlagValues()
case_flags.define(FLAGS, "performance", "docs/performance.md", rounds=50)
flags.DEFINE_list(
    "benchmarks", [], f"Only these, of {', '.join(outcome.SUMMARIES)}.", flag_values=FLAGS
)

_PAGE = Path(__file__).parent / "page.md"


@flags.validator("benchmarks", flag_values=FLAGS)
def _are_benchmarks(names: Sequence[str]) -> bool:
    unknown = set(names) - set(outcome.SUMMARIES)
    if unknown:
        known = ", ".join(outcome.SUMMARIES)
        raise flags.ValidationError(f"must be of {known}; got {', '.join(sorted(unknown))}")
    return True


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"flags only, got {argv[1]!r}")
    with tempfile.TemporaryDirectory() as folder:
        return _run(Path(folder))


def _run(folder: Path) -> int:
    deadline = case_flags.deadline(FLAGS)
    saved = _read(Path(FLAGS.json))
    failed = 0
    for case in cases.all_cases():
        of_case = saved["cases"].setdefault(case.name, {})
        if not case_flags.is_selected(FLAGS, case.name):
            continue
        commands = case.commands(FLAGS.rounds)
        before: dict[str, Any] | None = None
        for name in _missing(commands, of_case):
            # A wire is held against the step times that were measured just before.
            if before is None if name == "wire" else time.monotonic() >= deadline:
                continue
            found = before = _measure(name, commands[name], folder)
            if found is None:
                failed += 1
                continue
            where = {part: found[part] for part in ("machine", "versions")}
            of_case[name] = outcome.SUMMARIES[name](found) | where
            Path(FLAGS.json).write_text(json.dumps(saved, indent=1) + "\n")
    Path(FLAGS.json).write_text(json.dumps(saved, indent=1) + "\n")
    # Around the tables the page is what a person has written; at first, what stands here.
    page = Path(FLAGS.document)
    text = (page if page.exists() else _PAGE).read_text()
    blocks = document.blocks(saved) | document.gains(saved)
    page.write_text(fill(text, blocks, others=("many_cores", "speedup", "stage_overhead")))
    return 1 if failed else 0


def _missing(commands: Mapping[str, Sequence[str]], of_case: Mapping[str, Any]) -> list[str]:
    """The benchmarks that are to be run, in their order."""
    missing = {name for name in commands if FLAGS.remeasure or name not in of_case}
    if FLAGS.benchmarks:
        missing &= set(FLAGS.benchmarks)
    if "wire" in missing:
        missing.add("step_time")
    return [name for name in commands if name in missing]


def _read(path: Path) -> dict[str, Any]:
    """Returns the earlier measurements; the cases in their order."""
    if not path.exists():
        return {"cases": {}}
    found: dict[str, Any] = json.loads(path.read_text())
    known = found["cases"]
    found["cases"] = {case.name: known.get(case.name, {}) for case in cases.all_cases()}
    return found


def _measure(name: str, command: Sequence[str], folder: Path) -> dict[str, Any] | None:
    """Runs a benchmark and returns its document; prints a line and returns None if it fails."""
    before = folder / "step_time.json"
    command = [part.replace("{step_time}", str(before)) for part in command]
    return measured("performance", command, folder / f"{name}.json")


if __name__ == "__main__":
    app.run(main)
