"""Workers with several cores each, on one machine: what communication threads are for.

    python -m benchmarks.many_cores                       # all that fits into 8 minutes
    python -m benchmarks.many_cores --budget_seconds 0    # the section of the document alone

2, 4 and 8 workers share the machine's cores, over shared memory and over shaped links between
network namespaces (`benchmarks/cluster.py`; needs root). For each case it runs
`benchmarks.step_time` with SGD and with Adam, and `benchmarks.truth`, whose model gives the
contention curves. After each of them, its result is saved in `--json`, so what was measured stays
if time runs out, and the next run continues; `--remeasure` measures saved results again. A
benchmark begins only if the longest one of its kind so far would end within the budget, and is
ended with it. In the end the section "Many cores" of `--document` is filled in, if that file
exists.

Workers meet under Horovod if it is installed, else by TF_CONFIG: `tools/pack_runtime.py` packs a
runtime without Horovod for a machine without network.
"""

import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

from benchmarks import cluster, models
from benchmarks.many_cores import cases, outcome
from benchmarks.markdown import fill
from benchmarks.measuring import measured

# The module defines flags of the process only if it runs as a program, not if it is imported.
FLAGS = flags.FLAGS if __name__ == "__main__" else flags.FlagValues()
flags.DEFINE_string(
    "json",
    "benchmarks/results/many_cores.json",
    "The results, saved case by case.",
    flag_values=FLAGS,
)
flags.DEFINE_string("document", "docs/performance.md", "Filled in.", flag_values=FLAGS)
flags.DEFINE_float("budget_seconds", 470.0, "For all of it.", lower_bound=0, flag_values=FLAGS)
flags.DEFINE_list("models", ["cnn5m"], "See benchmarks.models.", flag_values=FLAGS)
flags.DEFINE_list(
    "shapes",
    [],
    "As WORKERSxCORES; default: 2, 4 and 8 workers that share the cores.",
    flag_values=FLAGS,
)
flags.DEFINE_list(
    "rates", ["10gbit"], "Of links, besides shared memory; may be empty.", flag_values=FLAGS
)
flags.DEFINE_list(
    "strategies", list(cases.STRATEGIES), "Of benchmarks.step_time.", flag_values=FLAGS
)
flags.DEFINE_integer("rounds", 15, "Of steps.", lower_bound=2, flag_values=FLAGS)
flags.DEFINE_integer("plans", 8, "That are predicted.", lower_bound=2, flag_values=FLAGS)
flags.DEFINE_list("benchmarks", list(cases.BENCHMARKS), "Only these.", flag_values=FLAGS)
flags.DEFINE_enum(
    "launcher",
    "auto",
    ["auto", "horovod", "tf_config"],
    "How workers find each other; auto: by Horovod if it is installed.",
    flag_values=FLAGS,
)
flags.DEFINE_bool("remeasure", False, "Measure saved results again.", flag_values=FLAGS)

# Until one of its kind was run.
_FIRST_ESTIMATE_SECONDS = 15.0


@flags.validator("shapes", flag_values=FLAGS)
def _are_shapes(texts: Sequence[str]) -> bool:
    cores = len(os.sched_getaffinity(0))
    try:
        shapes = [cases.parse_shape(text) for text in texts]
    except ValueError as error:
        raise flags.ValidationError(str(error)) from error
    for shape in shapes:
        if shape.workers * shape.cores > cores:
            raise flags.ValidationError(
                f"shapes: {shape.workers}x{shape.cores} needs more than the {cores} cores here"
            )
    return True


@flags.validator("models", flag_values=FLAGS)
def _are_models(names: Sequence[str]) -> bool:
    try:
        return all(models.find(name) for name in names)
    except ValueError as error:
        raise flags.ValidationError(str(error)) from error


@flags.validator("benchmarks", flag_values=FLAGS)
def _are_benchmarks(names: Sequence[str]) -> bool:
    if not names or not set(names) <= set(cases.BENCHMARKS):
        known = ", ".join(cases.BENCHMARKS)
        raise flags.ValidationError(f"must be of {known}; got {','.join(names)}")
    return True


def run_cases(
    wanted: Iterable[tuple[cases.Case, str]],
    budget_seconds: float,
    measure: Callable[[cases.Case, str, float], dict[str, Any] | None],
    save: Callable[[cases.Case, str, dict[str, Any]], None],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[str], list[str]]:
    """Measures one case after the other within a budget.

    Args:
        wanted: cases and benchmarks, in order.
        budget_seconds: for all of them.
        measure: runs a benchmark of a case within seconds; returns None if it fails.
        save: keeps the document of a benchmark.
        clock: in seconds.

    Returns:
        Names of those that failed, and of those that did not fit.
    """
    deadline = clock() + budget_seconds
    longest: dict[str, float] = {}
    failed, left_out = [], []
    for case, benchmark in wanted:
        start = clock()
        if start + longest.get(benchmark, _FIRST_ESTIMATE_SECONDS) > deadline:
            left_out.append(f"{case.name}, {benchmark}")
            continue
        found = measure(case, benchmark, deadline - start)
        longest[benchmark] = max(longest.get(benchmark, 0.0), clock() - start)
        if found is None:
            failed.append(f"{case.name}, {benchmark}")
        else:
            save(case, benchmark, found)
    return failed, left_out


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"flags only, got {argv[1]!r}")
    path, page = Path(FLAGS.json), Path(FLAGS.document)
    saved: dict[str, Any] = {"cases": {}, "notes": []}
    if path.exists():
        saved = json.loads(path.read_text())
    shapes = [cases.parse_shape(text) for text in FLAGS.shapes]
    shapes = shapes or list(cases.shapes_of(len(os.sched_getaffinity(0))))
    reason = cluster.why_impossible() if FLAGS.rates else None
    rates: list[str | None] = [None, *(FLAGS.rates if reason is None else [])]
    saved["notes"] = [] if reason is None else [f"Shaped links were not measured: {reason}."]
    is_wanted = [
        (case, benchmark)
        for case, benchmark in cases.all_cases(FLAGS.models, shapes, rates)
        if benchmark in FLAGS.benchmarks
        and (FLAGS.remeasure or benchmark not in saved["cases"].get(case.name, {}))
    ]

    def write() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(saved, indent=1) + "\n")

    def save(case: cases.Case, benchmark: str, document: dict[str, Any]) -> None:
        saved["cases"].setdefault(case.name, {})[benchmark] = outcome.summarize(benchmark, document)
        write()

    failed, left_out = run_cases(is_wanted, FLAGS.budget_seconds, _measure, save)
    for name in left_out:
        print(f"many_cores: no time for {name}", file=sys.stderr)
    if saved["cases"]:
        write()
    if page.exists():
        block = outcome.blocks(saved)
        page.write_text(fill(page.read_text(), block, prefix="many_cores"))
    return 1 if failed else 0


def _measure(case: cases.Case, benchmark: str, seconds: float) -> dict[str, Any] | None:
    launcher = FLAGS.launcher
    if launcher == "auto":
        found = importlib.util.find_spec("horovod")
        launcher = "tf_config" if found is None else "horovod"
    command = case.command(benchmark, launcher, FLAGS.strategies, FLAGS.rounds, FLAGS.plans)
    with tempfile.TemporaryDirectory() as folder:
        return measured("many_cores", command, Path(folder) / "out.json", seconds)


if __name__ == "__main__":
    app.run(main)
