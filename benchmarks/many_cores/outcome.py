"""Saved results of workers with several cores, and the Markdown of docs/performance.md."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.markdown import table
from benchmarks.performance.outcome import of_truth
from tf_libra.cost_model import cost_model_from_json

# Strategies that all-reduce nothing.
_ALONE = ("none", "one-worker")
_THREADS = (1, 2, 3, 4)
_COMMAND = "python -m benchmarks.many_cores"


def summarize(benchmark: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the results to save from a document of a benchmark.

    Args:
        benchmark: one of `cases.BENCHMARKS`.
        document: of `benchmarks.truth` or `benchmarks.step_time`.
    """
    where = {key: document[key] for key in ("machine", "versions")}
    if benchmark == "truth":
        found = of_truth(document) | {"curves": curves(document["settings"]["cost_model"])}
    else:
        found = _of_step_time(document)
    return found | {"settings": _settings(document["settings"])} | where


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    names = ["np", "network", "model", "optimizer", "cores_per_worker", "congestion_control"]
    names += ["intra_op_threads", "inter_op_threads", "parameters"]
    return {name: settings[name] for name in names if name in settings}


def _of_step_time(document: Mapping[str, Any]) -> dict[str, Any]:
    seconds = document["seconds"]
    medians = results.medians(document)
    reducing = {name: value for name, value in medians.items() if name not in _ALONE}
    best = min(reducing, key=lambda name: reducing[name])
    return {
        "median_seconds": medians,
        "best": best,
        "ratios": {
            baseline: {
                name: results.spread(np.divide(seconds[name], seconds[baseline]))
                for name in reducing
                if name != baseline
            }
            for baseline in (best, "one-worker")
            if baseline in seconds
        },
        "plans": {
            name: {
                "strategy": plan["strategy"],
                "threads": [group["num_threads"] for group in plan["groups"]],
            }
            for name, plan in document["plan"].items()
        },
        "tuning": document["tuning"],
        "rounds": document["rounds"],
    }


def curves(document: Mapping[str, Any]) -> dict[str, list[float]]:
    """Returns the contention curves of a fitted model, at 1 to 4 communication threads.

    {"threads", "slowdown": of computation, g(b, r) / b; "overlapped", "exclusive": bytes per
    second that an all-reduce transmits}.

    Args:
        document: the cost model as JSON.
    """
    model, threads = cost_model_from_json(json.dumps(document)), np.array(_THREADS)
    return {
        "threads": list(_THREADS),
        "slowdown": (1 / model.compute_rate(threads)).tolist(),
        "overlapped": model.overlapped_rate(threads).tolist(),
        "exclusive": model.exclusive_rate(threads).tolist(),
    }


def blocks(document: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns the block of docs/performance.md.

    Args:
        document: {"cases": {case: {benchmark: kept}}, "notes": lines}; None if nothing was
            measured.
    """
    measured = {name: case for name, case in (document or {"cases": {}})["cases"].items() if case}
    if document is None or not measured:
        return {"many_cores": f"Not measured: no result of `{_COMMAND}` has been saved.\n"}
    parts = [_machines(measured)]
    parts += [f"- {note}\n" for note in document["notes"]]
    for optimizer, title in (("sgd", "SGD"), ("adam", "Adam")):
        rows = [(name, *_step_row(case[optimizer])) for name, case in _having(optimizer, measured)]
        steps = ["case", "one worker", "none", "`libra`", "the best", "`libra` to it"]
        steps += ["to one worker", "threads of `libra`"]
        parts.append(_section(f"Step times with {title}, ms", steps, rows))
    rows = [(name, *_truth_row(case["truth"])) for name, case in _having("truth", measured)]
    head = ("case", "step: median, worst, bias", "backward", "noise")
    parts.append(_section("Predictions of unseen plans", head, rows))
    curve_rows = [
        (name, *_curve_row(case["truth"]["curves"])) for name, case in _having("truth", measured)
    ]
    curve_head = ("case", "computation takes", "overlapped, GB/s", "alone, GB/s")
    title = f"Contention as fitted, with {', '.join(map(str, _THREADS))} threads"
    parts.append(_section(title, curve_head, curve_rows))
    return {"many_cores": "".join(parts)}


def _having(benchmark: str, cases: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, case) for name, case in cases.items() if benchmark in case]


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"\n{title}:\n\n{table(head, rows)}" if rows else ""


def _machines(cases: Mapping[str, Any]) -> str:
    found = [results.machine_text(result) for case in cases.values() for result in case.values()]
    return "".join(f"- {text}\n" for text in dict.fromkeys(found))


def _step_row(result: Mapping[str, Any]) -> tuple[str, ...]:
    medians, ratios, best = result["median_seconds"], result["ratios"], result["best"]

    def milliseconds(name: str) -> str:
        return f"{medians[name] * 1e3:.1f}" if name in medians else ""

    def ratio(baseline: str) -> str:
        compared = ratios.get(baseline, {}).get("libra")
        return "" if compared is None else results.ratio_text(compared)

    plan = result["plans"].get("libra")
    threads = "" if plan is None else ", ".join(map(str, plan["threads"]))
    if plan is not None and plan["strategy"] != "libra":
        threads += f" (plan by {plan['strategy']})"
    return (
        *map(milliseconds, ("one-worker", "none", "libra")),
        f"{best} {milliseconds(best)}",
        *map(ratio, (best, "one-worker")),
        threads,
    )


def _truth_row(result: Mapping[str, Any]) -> tuple[str, ...]:
    def errors(quantity: str) -> str:
        found = result[quantity]
        if found["median_error"] is None:
            return "never measured"
        median, worst = found["median_error"], found["worst_error"]
        return f"{median:.1%}, {worst:.1%}, {found['bias']:+.1%}"

    return errors("step"), errors("backward"), f"{result['noise']:.1%}"


def _curve_row(found: Mapping[str, list[float]]) -> tuple[str, ...]:
    slowdown = ", ".join(f"{value:.2f}" for value in found["slowdown"])
    rates = (", ".join(f"{v / 1e9:.2f}" for v in found[key]) for key in ("overlapped", "exclusive"))
    return (f"{slowdown} times as long", *rates)
