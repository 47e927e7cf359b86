"""The outcome as Markdown: blocks between the marks of docs/performance.md."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import results
from benchmarks.markdown import table
from benchmarks.performance import outcome

SavedCases = Mapping[str, Mapping[str, Any]]
# Columns that a table has once one of its cases was measured against one worker.
_OF_ONE_WORKER = ("one worker, ms", "to one worker", "faster than one worker")


def blocks(document: Mapping[str, Any]) -> dict[str, str]:
    """All blocks.

    Args:
        document: {"cases": {case: {benchmark: what is kept of it}}}.
    """
    cases = document["cases"]
    machines = _machines(cases)
    return {
        "goals": _goals(cases),
        "steps": _table(
            (
                "case",
                "on",
                "`libra`, ms",
                "best other, ms",
                "to it: median (p10 to p90)",
                "to Horovod",
                "one worker, ms",
                "to one worker",
                "tuning",
                "plan",
                "misses",
            ),
            [
                (name, machines[results.machine_text(case["step_time"])], *_step_row(case))
                for name, case in _having("step_time", cases)
            ],
        ),
        "truth": table(
            (
                "case",
                "on",
                "step: median, worst, bias, rank",
                "backward",
                "all-reduces: alone, overlapped, in the bucket",
                "measured in",
                "two fits",
                "noise",
                "pace",
                "misses",
            ),
            _rows("truth", _truth_row, cases, machines),
        ),
        "wire": _table(
            ("case", "on", "limit, ms", "one worker, ms", "`libra`", "the best share", "misses"),
            [
                (name, machines[results.machine_text(case["wire"])], *_wire_row(case))
                for name, case in _having("wire", cases)
            ],
        ),
        "plain": _table(
            (
                "case",
                "on",
                "`libra`, ms",
                "plain, ms",
                "to it: median (p10 to p90)",
                "one worker, ms",
                "to one worker",
                "misses",
            ),
            _rows("plain", _plain_row, cases, machines),
        ),
        "machine": "".join(f"- {letter}: {machine}\n" for machine, letter in machines.items()),
    }


def gains(document: Mapping[str, Any]) -> dict[str, str]:
    """Returns the user's gains, as a block of its own.

    Args:
        document: as of `blocks`.
    """
    rows = []
    machines = _machines(document["cases"])
    for name, case in _having("step_time", document["cases"]):
        medians = case["step_time"]["median_seconds"]
        if not name.endswith(", pinned"):
            continue
        plain = _times_faster(case["plain"]) if "plain" in case else ""
        rows.append(
            (
                name.removesuffix(", pinned"),
                machines[results.machine_text(case["step_time"])],
                f"{medians['none'] * 1e3:.0f}",
                f"{medians['horovod'] * 1e3:.0f}",
                f"{medians['libra'] * 1e3:.0f}",
                f"{1 / case['step_time']['to_horovod']['median']:.2f} x",
                *_gain_over_one_worker(case),
                plain,
            )
        )
    head = (
        "model and network",
        "on",
        "no communication, ms",
        "Horovod, ms",
        "TF-Libra, ms",
        "faster than Horovod",
        "one worker, ms",
        "faster than one worker",
        "than MultiWorkerMirroredStrategy: its step and TF-Libra's",
    )
    return {"gains": _table(head, rows)}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without the columns of one worker if none of its cases has them."""
    shown = [
        column
        for column, name in enumerate(head)
        if name not in _OF_ONE_WORKER or any(row[column] for row in rows)
    ]
    return table(
        [head[column] for column in shown], [[row[column] for column in shown] for row in rows]
    )


def _gain_over_one_worker(case: Mapping[str, Any]) -> tuple[str, str]:
    """Milliseconds of one worker, and how much faster two are; empty if not measured."""
    if "one_worker" not in case:
        return "", ""
    result = case["one_worker"]
    ratio = result["to_one_worker"]["libra"]["median"]
    return f"{result['median_seconds']['one-worker'] * 1e3:.0f}", f"{1 / ratio:.2f} x"


def _times_faster(plain: Mapping[str, Any]) -> str:
    """With the milliseconds of both, as they come from a job of their own."""
    medians = plain["median_seconds"]
    return (
        f"{1 / plain['to_plain']['median']:.2f} x:"
        f" {medians['mwms'] * 1e3:.0f} and {medians['libra'] * 1e3:.0f} ms"
    )


def _having(benchmark: str, cases: SavedCases) -> list[tuple[str, Mapping[str, Any]]]:
    return [(name, case) for name, case in cases.items() if benchmark in case]


def _goals(cases: SavedCases) -> str:
    """Returns a table of the number of cases that meet each goal."""
    steps = [case["step_time"] for _, case in _having("step_time", cases)]
    truths = [case["truth"] for _, case in _having("truth", cases)]
    plains = [case["plain"] for _, case in _having("plain", cases)]
    wires = [case["wire"] for _, case in _having("wire", cases) if case["wire"]["shares"]]
    ratios = [step["to_best"]["median"] for step in steps]
    rows: list[tuple[str, str]] = []

    def add(goal: str, met: Sequence[bool]) -> None:
        rows.append((goal, f"{sum(met)} of {len(met)} cases"))

    add(
        f"`libra` takes at most {outcome.MOST_TO_BEST:g} of the best other strategy's step",
        [ratio <= outcome.MOST_TO_BEST for ratio in ratios],
    )
    add(
        f"`libra` takes at most {outcome.LESS_THAN_BEST:g} of it (goal: a third of the cases)",
        [ratio <= outcome.LESS_THAN_BEST for ratio in ratios],
    )
    add(
        f"a plan is active within {outcome.TUNING_STEPS} steps and"
        f" {outcome.TUNING_SECONDS:g} s, trials included",
        [
            _is_at_most(step["tuning"], outcome.TUNING_STEPS, outcome.TUNING_SECONDS)
            for step in steps
        ],
    )
    add(
        f"steps of unseen plans are missed by at most {outcome.STEP_ERROR:.0%} in the median",
        [truth["step"]["median_error"] <= outcome.STEP_ERROR for truth in truths],
    )
    add(
        f"their backward by at most {outcome.BACKWARD_ERROR:.0%}",
        [_within(truth["backward"], "median_error", outcome.BACKWARD_ERROR) for truth in truths],
    )
    for quantity in ("step", "backward"):
        add(
            f"no bias of the {quantity} above {outcome.BIAS:.0%}, none missed by more than"
            f" {outcome.WORST_ERROR:.0%}",
            [
                _within(truth[quantity], "bias", outcome.BIAS)
                and _within(truth[quantity], "worst_error", outcome.WORST_ERROR)
                for truth in truths
            ],
        )
    add(
        f"plans' steps are ranked as measured (Spearman's, at least {outcome.RANK_CORRELATION:g}),"
        " where these differ by more than four times the noise",
        [
            (truth["step"]["rank_correlation"] or 0.0) >= outcome.RANK_CORRELATION
            for truth in truths
            if outcome.has_ranks(truth)
        ],
    )
    both = [truth for truth in truths if "measuring" in truth]
    if both:
        add(
            f"single all-reduces, alone and overlapped, are missed by at most"
            f" {outcome.ALL_REDUCE_ERROR:.0%} in the median",
            [
                all(
                    errors["median_error"] is None
                    or errors["median_error"] <= outcome.ALL_REDUCE_ERROR
                    for errors in outcome.on_the_wire(truth).values()
                )
                for truth in both
            ],
        )
        noises = [
            [errors["noise"] or 0.0 for errors in outcome.on_the_wire(truth).values()]
            for truth in both
            if all("noise" in errors for errors in outcome.on_the_wire(truth).values())
        ]
        if noises:  # results of earlier versions have none
            add(
                "the medians that these are compared with are known that well (half of the noise)",
                [max(of_case) / 2 <= outcome.ALL_REDUCE_ERROR for of_case in noises],
            )
        add(
            f"measuring takes at most {outcome.MEASURING_STEPS} steps and"
            f" {outcome.MEASURING_SECONDS:g} s, without trials",
            [
                _is_at_most(truth["measuring"], outcome.MEASURING_STEPS, outcome.MEASURING_SECONDS)
                for truth in both
            ],
        )
    fits = [truth["fits"] for truth in truths if "fits" in truth]
    if fits:  # results of earlier versions have none
        add(
            f"rates of two fits in a row differ by at most {outcome.FITS_DIFFERENCE:.0%}",
            [difference <= outcome.FITS_DIFFERENCE for difference in fits],
        )
    add(
        f"`libra` wins back {outcome.SHARE_OF_WIRE:g} of what Horovod loses to the wire's limit",
        [wire["shares"].get("libra", 0.0) >= outcome.SHARE_OF_WIRE for wire in wires],
    )
    add(
        f"`libra` takes at most {outcome.MOST_TO_PLAIN:g} of a plain MultiWorkerMirroredStrategy's"
        " step",
        [plain["to_plain"]["median"] <= outcome.MOST_TO_PLAIN for plain in plains],
    )
    alone = [case["one_worker"]["to_one_worker"] for _, case in _having("one_worker", cases)]
    if alone:
        add(
            "`libra` on two workers is faster than one worker that trains the joint batch",
            [ratio["libra"]["median"] < 1 for ratio in alone],
        )
    text = table(("goal", "met in"), rows)
    if truths:
        noise = statistics.median(truth["noise"] for truth in truths)
        text += (
            f"\nA plan's own step differed by {noise:.1%} in the median between the first half of"
            " its rounds and the second: what is smaller than that is noise.\n"
        )
    return text


def _within(errors: Mapping[str, float | None], which: str, most: float) -> bool:
    """Returns whether an error was measured and is at most `most`."""
    error = errors[which]
    return error is not None and abs(error) <= most


def _is_at_most(phase: Mapping[str, float], steps: int, seconds: float) -> bool:
    """Returns whether a phase took at most so many steps and seconds."""
    return phase["steps"] <= steps and phase["seconds"] <= seconds


def _step_row(case: Mapping[str, Any]) -> tuple[str, ...]:
    result = case["step_time"]
    medians, best = result["median_seconds"], result["best"]
    tuning = result["tuning"]
    one_worker = case.get("one_worker")
    return (
        f"{medians['libra'] * 1e3:.1f}",
        f"{best} {medians[best] * 1e3:.1f}",
        results.ratio_text(result["to_best"]),
        results.ratio_text(result["to_horovod"]),
        "" if one_worker is None else _milliseconds(one_worker, "one-worker"),
        "" if one_worker is None else results.ratio_text(one_worker["to_one_worker"]["libra"]),
        f"{tuning['steps']} steps, {tuning['seconds']:.0f} s",
        result["plan"],
        "; ".join(outcome.misses("step_time", result)),
    )


def _all_reduces(errors: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns median errors, with the noise where it was measured."""
    cells = []
    for error in errors.values():
        median, noise = error["median_error"], error.get("noise")
        cell = "none" if median is None else f"{median:.1%}"
        cells.append(cell if noise is None else f"{cell} (noise {noise:.1%})")
    return ", ".join(cells)


def _truth_row(result: Mapping[str, Any]) -> tuple[str, ...]:
    taken = result.get("measuring")
    return (
        _errors(result["step"]),
        _errors(result["backward"]),
        _all_reduces(result.get("all_reduce", {})),
        f"{taken['steps']} steps, {taken['seconds']:.1f} s" if taken else "",
        f"{result['fits']:.1%}" if "fits" in result else "",
        f"{result['noise']:.1%}",
        f"{result['drift']:.2f} ({result['pace'][0]:.2f} to {result['pace'][1]:.2f})",
        "; ".join(outcome.misses("truth", result)),
    )


def _plain_row(result: Mapping[str, Any]) -> tuple[str, ...]:
    medians = result["median_seconds"]
    return (
        f"{medians['libra'] * 1e3:.1f}",
        f"{medians['mwms'] * 1e3:.1f}",
        results.ratio_text(result["to_plain"]),
        _milliseconds(result, "one-worker") if "one-worker" in medians else "",
        results.ratio_text(result["to_one_worker"]) if "one-worker" in medians else "",
        "; ".join(outcome.misses("plain", result)),
    )


def _wire_row(case: Mapping[str, Any]) -> tuple[str, ...]:
    result, one_worker = case["wire"], case.get("one_worker")
    shares = result["shares"] or {}
    best = max(shares, key=lambda strategy: shares[strategy], default=None)
    return (
        f"{result['limit_seconds'] * 1e3:.1f}",
        "" if one_worker is None else _milliseconds(one_worker, "one-worker"),
        f"{shares['libra']:.2f}" if "libra" in shares else "Horovod is at the limit",
        "" if best is None else f"{best} {shares[best]:.2f}",
        "; ".join(outcome.misses("wire", result)),
    )


def _milliseconds(result: Mapping[str, Any], strategy: str) -> str:
    return f"{result['median_seconds'][strategy] * 1e3:.1f}"


def _errors(errors: Mapping[str, float | None]) -> str:
    if errors["median_error"] is None:
        return "never measured"
    ranked = errors["rank_correlation"]
    return (
        f"{errors['median_error']:.1%}, {errors['worst_error']:.1%}, {errors['bias']:+.1%},"
        f" {'none' if ranked is None else format(ranked, '.2f')}"
    )


def _rows(
    benchmark: str,
    row: Callable[[Mapping[str, Any]], tuple[str, ...]],
    cases: SavedCases,
    machines: Mapping[str, str],
) -> list[tuple[str, ...]]:
    """A row per case that was measured: its name, its machine, and what the benchmark found."""
    return [
        (name, machines[results.machine_text(case[benchmark])], *row(case[benchmark]))
        for name, case in _having(benchmark, cases)
    ]


def _machines(cases: SavedCases) -> dict[str, str]:
    """A letter for each machine that something was measured on, in the cases' order."""
    known = dict.fromkeys(
        results.machine_text(result) for case in cases.values() for result in case.values()
    )
    return {machine: chr(ord("A") + number) for number, machine in enumerate(known)}
