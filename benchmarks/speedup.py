"""Speedup over one worker on the same joint batch, of Horovod and of every family of strategies.

    python -m benchmarks.speedup [--only "cnn5m, 2 workers, one host, SGD"] [--rounds 30]
        [--minutes 60] [--remeasure]

For each case it runs `benchmarks.step_time` with one worker, Horovod, the data-parallel `libra`,
the pipeline `spp`, the burst plan `deeppool` and `auto`, which chooses among families, one case
after the other, on a machine that should do nothing else; cases on several hosts need root
(`benchmarks/cluster.py`). After every case, its result is saved in `--json`, so that an interrupted
run can continue; `--remeasure` measures saved results again, and cases that were saved without
`auto` are measured in any case. In the end, and with `--minutes 0` immediately, the tables of
`--document` and `--readme` are made from the saved results.

What a number means: a speedup is the inverse of the median, over rounds, of the ratio of a
strategy's step time to that of one worker; both train as many examples. A prediction is the time
that the planner of a family gives for its plan before the plan has run.
"""

import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import app, flags

from benchmarks import case_flags, results
from benchmarks.case_runs import measure_cases
from benchmarks.markdown import fill, table

# The module defines flags of the process only if it runs as a program, not if it is imported.
FLAGS = flags.FLAGS if __name__ == "__main__" else flags.FlagValues()
case_flags.define(FLAGS, "speedup", "docs/performance.md", rounds=30)
flags.DEFINE_string("readme", "README.md", "Its table is filled in.", flag_values=FLAGS)

MODELS = ("cnn5m", "mlp", "transformer", "resnet20")
# Models that are measured on three workers, too.
ON_THREE = ("cnn5m", "mlp")
# Rates of links as tc writes them; None: the workers are on one host.
RATES = (None, "5gbit", "1gbit")
# Optimizer, and times as many examples per rank as a model comes with.
SETTINGS = (("sgd", 1), ("sgd", 4), ("adam", 1))
# Strategies of `benchmarks.step_time` by the column of the table.
AUTO = "auto"
FAMILIES = {
    "Horovod": "horovod",
    "`libra`": "libra",
    "`spp`": "spp:num_microbatches=4",
    "`deeppool`": "deeppool",
    "`auto`": AUTO,
}
# Goals for the step of `auto`, as a ratio to the best family's, and to one worker's.
TO_BEST, TO_ONE_WORKER = 1.05, 1.03
# Goals for the speedup of `auto`: cnn5m with SGD, by the rate of links.
CNN5M = {None: 1.75, "5gbit": 1.3, "1gbit": 1.15}
# Goals for the steps and seconds that `auto` measures and tries.
MAX_STEPS, MAX_SECONDS = 150, 60.0
# Goals for predictions of a family's step: the median error, and the largest.
MEDIAN_ERROR, WORST_ERROR = 0.05, 0.10
# Largest ratio of the 90th to the 10th percentile of one worker's steps: more means that other
# programs run. Steps that use links spread by themselves.
MAX_SPREAD = 1.25


@dataclass(frozen=True)
class Case:
    """Workers with one core each that train one model.

    Attributes:
        model: see `benchmarks.models`.
        num_workers: world size.
        rate: of the links between hosts of one worker each; None on one host.
        optimizer: "sgd" or "adam".
        batch_factor: times as many examples per rank as the model comes with.
    """

    model: str
    num_workers: int
    rate: str | None
    optimizer: str
    batch_factor: int

    @property
    def name(self) -> str:
        """Name of the case, also its key: "cnn5m, 2 workers, one host, SGD"."""
        network = "one host" if self.rate is None else self.rate
        optimizer = {"sgd": "SGD", "adam": "Adam"}[self.optimizer]
        batch = "" if self.batch_factor == 1 else f", batch x {self.batch_factor}"
        return f"{self.model}, {self.num_workers} workers, {network}, {optimizer}{batch}"

    def command(self, rounds: int) -> list[str]:
        """Returns the command that measures the case and writes JSON to `--json`."""
        placed = [f"--hosts={self.num_workers}", f"--rate={self.rate}"]
        return [
            sys.executable,
            "-m",
            "benchmarks.step_time",
            *([f"--np={self.num_workers}"] if self.rate is None else placed),
            f"--model={self.model}",
            f"--optimizer={self.optimizer}",
            f"--batch_factor={self.batch_factor}",
            f"--rounds={rounds}",
            f"--strategies={','.join(['one-worker', *FAMILIES.values()])}",
        ]


def all_cases() -> Iterator[Case]:
    """Yields the most telling cases first, for a measurement that has to end early."""
    for (optimizer, factor), rate, model in itertools.product(SETTINGS, RATES, MODELS):
        yield Case(model, 2, rate, optimizer, factor)
    for (optimizer, factor), rate, model in itertools.product(SETTINGS, RATES, ON_THREE):
        yield Case(model, 3, rate, optimizer, factor)


def is_disturbed(document: Mapping[str, Any]) -> bool:
    """Returns whether one worker's steps spread widely, as when other programs run."""
    steps = document["strategies"]["one-worker"]
    return bool(steps["p90_seconds"] / steps["p10_seconds"] > MAX_SPREAD)


def summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the results to save from a document of `benchmarks.step_time`."""
    plans = document["plan"]
    predicted = {
        name: plans[name].get("predicted_seconds", plans[name].get("iteration_seconds"))
        for name in FAMILIES.values()
        if name != AUTO and "groups" not in plans.get(name, {"groups": ()})
    }
    return {
        "median_seconds": results.medians(document),
        "to_one_worker": {
            name: document["ratios"][f"{name}/one-worker"] for name in FAMILIES.values()
        },
        "predicted_seconds": predicted,
        "went_on_with": _family_of(plans.get(AUTO, {})),
        "tuning": document["tuning"].get(AUTO),
        "rounds": document["rounds"],
        "machine": document["machine"],
        "versions": document["versions"],
    }


def _undisturbed_summary(case: Case, document: Mapping[str, Any]) -> dict[str, Any] | None:
    if not is_disturbed(document):
        return summary(document)
    print(f"speedup: {case.name}: not saved, steps of one worker spread too widely")
    return None


def _family_of(plan: Mapping[str, Any]) -> str:
    """Returns the family of the plan that `auto` went on with."""
    kinds = {"groups": "data parallelism", "stages": "a pipeline", "num_devices": "bursts"}
    return next((family for key, family in kinds.items() if key in plan), "one rank")


def blocks(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Returns the blocks of the document from the saved results, by case."""
    machines = list(dict.fromkeys(map(results.machine_text, cases.values())))
    head = (
        "case",
        "one worker, ms",
        *(f"{column}: ms, speedup" for column in FAMILIES),
        "fastest but `auto`",
        "`spp`, `deeppool` predicted, ms",
    )
    rows = [(name, *_row(case)) for name, case in cases.items()]
    lines = "".join(f"\nMeasured on {machine}\n" for machine in machines)
    return {"speedup": table(head, rows) + lines, "speedup_goals": _goals(cases)}


def _row(case: Mapping[str, Any]) -> tuple[str, ...]:
    medians = case["median_seconds"]
    cells = [
        f"{medians[name] * 1e3:.0f}, {_speedup(case, name)}" if name in medians else ""
        for name in FAMILIES.values()
    ]
    if AUTO in medians:
        cells[-1] += f" ({case['went_on_with']})"
    predicted = (f"{seconds * 1e3:.0f}" for seconds in case["predicted_seconds"].values())
    return (
        f"{medians['one-worker'] * 1e3:.0f}",
        *cells,
        _fastest(medians).partition(":")[0],
        ", ".join(predicted),
    )


def _speedup(case: Mapping[str, Any], name: str) -> str:
    return f"{1 / case['to_one_worker'][name]['median']:.2f} x"


def _fastest(medians: Mapping[str, float]) -> str:
    """Returns the strategy with the least median step, `auto` apart."""
    return min(medians.keys() - {AUTO}, key=lambda name: medians[name])


def readme_blocks(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Returns the block of README: speedups alone."""
    rows = [
        (
            name,
            *(
                _speedup(case, family) if family in case["to_one_worker"] else "not measured"
                for family in FAMILIES.values()
            ),
        )
        for name, case in cases.items()
    ]
    return {"speedup": table(("case", *FAMILIES), rows)}


def _goals(cases: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a table of the goals that these results can decide."""
    if not cases:
        return "Not measured.\n"
    errors = [
        abs(case["median_seconds"][name] / seconds - 1)
        for case in cases.values()
        for name, seconds in case["predicted_seconds"].items()
    ]
    slower = [case["to_one_worker"]["libra"]["median"] > 1 for case in cases.values()]
    errors.sort()
    middle = errors[len(errors) // 2]
    rows = [
        (
            "steps of pipelines and bursts are predicted with a median error of at most"
            f" {MEDIAN_ERROR:.0%}, at worst {WORST_ERROR:.0%}",
            f"{middle:.0%}, {errors[-1]:.0%} at worst, in {len(errors)} predictions",
        ),
        ("`libra` is never slower than one worker", f"slower in {sum(slower)} of {len(slower)}"),
        *_goals_of_auto([case for case in cases.values() if AUTO in case["median_seconds"]]),
        *_goals_of_cnn5m(cases),
        *_goals_of_trials([case["tuning"] for case in cases.values() if case.get("tuning")]),
    ]
    return table(("goal", "measured"), rows)


def _goals_of_auto(cases: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    if not cases:
        return []
    medians = [case["median_seconds"] for case in cases]
    to_best = [
        medians_of_case[AUTO] / medians_of_case[_fastest(medians_of_case)]
        for medians_of_case in medians
    ]
    to_one_worker = [case["to_one_worker"][AUTO]["median"] for case in cases]
    return [
        (
            f"`auto` takes at most {limit:g} times as long as {what}",
            f"in {sum(ratio <= limit for ratio in ratios)} of {len(ratios)} cases, at worst"
            f" {max(ratios):.2f}",
        )
        for limit, what, ratios in (
            (TO_BEST, "the fastest of the others", to_best),
            (TO_ONE_WORKER, "one worker", to_one_worker),
        )
    ]


def _goals_of_cnn5m(cases: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for rate, goal in CNN5M.items():
        case = Case("cnn5m", 2, rate, "sgd", 1).name
        if AUTO in cases.get(case, {}).get("to_one_worker", ()):
            yield f"{case}: `auto` is {goal:g} x as fast as one worker", _speedup(cases[case], AUTO)


def _goals_of_trials(tuned: Sequence[Mapping[str, float]]) -> Iterator[tuple[str, str]]:
    for key, limit, unit in (("steps", MAX_STEPS, "steps"), ("seconds", MAX_SECONDS, "s")):
        if tuned:
            most = max(case[key] for case in tuned)
            yield (
                f"measurements and trials of `auto` take at most {limit:g} {unit}",
                f"at most {most:.3g} {unit}, in {len(tuned)} cases",
            )


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"flags only, got {argv[1]!r}")
    cores = len(os.sched_getaffinity(0))
    print(f"speedup: cases of more than {cores} workers need more cores and are left out")
    saved, num_failed = measure_cases(
        "speedup",
        FLAGS,
        (case for case in all_cases() if case.num_workers <= cores),
        _undisturbed_summary,
        lambda result: AUTO in result["median_seconds"],
    )
    in_order = {case.name: saved[case.name] for case in all_cases() if case.name in saved}
    page = Path(FLAGS.document)
    page.write_text(fill(page.read_text(), blocks(in_order), prefix="speedup"))
    readme = Path(FLAGS.readme)
    readme.write_text(fill(readme.read_text(), readme_blocks(in_order), prefix="speedup"))
    return 1 if num_failed else 0


if __name__ == "__main__":
    app.run(main)
