"""AIACC's comparison: every model and network, and the tables of docs/benchmarks.md from it.

    python -m benchmarks.streams [--minutes 30] [--only vgg] [--remeasure]

For each case (`cases.py`) it runs `benchmarks.step_time`, one after the other, on a machine that
should do nothing else; those on several hosts need root (`benchmarks/cluster.py`). After every
case, its result is saved in `--json`, so that an interrupted run can continue; `--remeasure`
measures saved results again. In the end, and with `--minutes 0`, the tables are made from it.
"""

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

from benchmarks import case_flags
from benchmarks.machine import machine, versions
from benchmarks.markdown import fill
from benchmarks.measuring import measured
from benchmarks.streams import cases, outcome

# The module defines flags of the process only if it runs as a program, not if it is imported.
FLAGS = flags.FLAGS if __name__ == "__main__" else flags.FlagValues()
case_flags.define(FLAGS, "streams", "docs/benchmarks.md", rounds=50)


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"flags only, got {argv[1]!r}")
    deadline = case_flags.deadline(FLAGS)
    path = Path(FLAGS.json)
    document = _read(path)
    failed = 0
    for case in cases.all_cases():
        is_wanted = case_flags.is_selected(FLAGS, case.name) and (
            FLAGS.remeasure or not document["cases"][case.name]
        )
        if not is_wanted or time.monotonic() >= deadline:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = measured("streams", case.command(FLAGS.rounds), Path(folder) / "step_time.json")
        if found is None:
            failed += 1
            continue
        document["cases"][case.name] = outcome.summarize(found)
        path.write_text(json.dumps(document, indent=1) + "\n")
    path.write_text(json.dumps(document, indent=1) + "\n")
    page = Path(FLAGS.document)
    page.write_text(fill(page.read_text(), outcome.blocks(document), "streams_"))
    return 1 if failed else 0


def _read(path: Path) -> dict[str, Any]:
    """Returns the earlier measurements; the cases in their order."""
    found = {"cases": {}, "machine": machine(), "versions": versions()}
    if path.exists():
        found = json.loads(path.read_text())
    known = found["cases"]
    found["cases"] = {case.name: known.get(case.name, {}) for case in cases.all_cases()}
    return found


if __name__ == "__main__":
    app.run(main)
