"""Saved results of a case, and their tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.markdown import table
from benchmarks.streams import cases

# `auto` to the best single strategy, in the median over rounds.
MOST_TO_BEST = 1.02
# Not of the comparison itself: what they are held against, or variants of what is.
_REFERENCES = ("none", "one-worker", "auto", cases.ONE_CONNECTION, cases.STREAMS)


def summarize(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the results to save from a document of `benchmarks.step_time`."""
    seconds = document["seconds"]
    medians = results.medians(document)
    single = {name: value for name, value in medians.items() if name not in _REFERENCES}
    best = min(single, key=lambda name: single[name])
    return {
        "median_seconds": medians,
        "to_horovod": {
            name: results.spread(np.divide(seconds[name], seconds["horovod"]))
            for name in medians
            if name not in ("none", "one-worker", "horovod")
        },
        "best": best,
        "auto_to_one_worker": results.spread(np.divide(seconds["auto"], seconds["one-worker"])),
        "auto_to_best": results.spread(np.divide(seconds["auto"], seconds[best])),
        "streams_to_one": results.spread(
            np.divide(seconds[cases.STREAMS], seconds[cases.ONE_CONNECTION])
        ),
        "plans": {name: _plan(plan) for name, plan in document["plan"].items()},
        "tuning": document["tuning"],
        "rounds": document["rounds"],
        "load_average": document["machine"]["load_average"],
        "machine": document["machine"],
        "versions": document["versions"],
    }


def _plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    groups = plan["groups"]
    return {
        "strategy": plan["strategy"],
        "groups": len(groups),
        "threads": max(group["num_threads"] for group in groups),
        "streams": len({group.get("stream", 0) for group in groups}),
    }


def blocks(document: Mapping[str, Any]) -> dict[str, str]:
    """Returns the blocks of docs/benchmarks.md.

    Args:
        document: {"cases": {case: what is kept of it}, "machine", "versions"}.
    """
    measured = {name: case for name, case in document["cases"].items() if case}
    names = [name for name in cases.STRATEGIES if name not in _REFERENCES] + ["auto"]
    has_one_worker = any("auto_to_one_worker" in case for case in measured.values())
    compared = table(
        (
            "case",
            "none, ms",
            "horovod, ms",
            *(f"{name} to horovod" for name in names[1:]),
            *(("one worker, ms", "auto to one worker") if has_one_worker else ()),
        ),
        [
            (
                name,
                f"{case['median_seconds']['none'] * 1e3:.1f}",
                f"{case['median_seconds']['horovod'] * 1e3:.1f}",
                *(results.ratio_text(case["to_horovod"][each]) for each in names[1:]),
                *(_one_worker(case) if has_one_worker else ()),
            )
            for name, case in measured.items()
        ],
    )
    chosen = table(
        ("case", "the best but auto", "auto to it", "auto's plan", "aiacc's plan", "tuning"),
        [
            (
                name,
                case["best"],
                results.ratio_text(case["auto_to_best"]),
                _describe_plan(case["plans"]["auto"]),
                _describe_plan(case["plans"]["aiacc"]),
                ", ".join(
                    f"{each} {case['tuning'][each]['steps']} steps in"
                    f" {case['tuning'][each]['seconds']:.0f} s"
                    for each in ("aiacc", "auto")
                ),
            )
            for name, case in measured.items()
        ],
    )
    gained = table(
        ("case", "one connection, ms", "streams of one, ms", "to it", "streams chosen"),
        [
            (
                name,
                f"{case['median_seconds'][cases.ONE_CONNECTION] * 1e3:.1f}",
                f"{case['median_seconds'][cases.STREAMS] * 1e3:.1f}",
                results.ratio_text(case["streams_to_one"]),
                case["plans"][cases.STREAMS]["streams"],
            )
            for name, case in measured.items()
        ],
    )
    return {
        "streams_compared": compared,
        "streams_chosen": chosen + _goal(list(measured.values())),
        "streams_gained": gained,
        "streams_machine": _machine(document, measured),
    }


def _goal(measured: Sequence[Mapping[str, Any]]) -> str:
    within = [case["auto_to_best"]["median"] <= MOST_TO_BEST for case in measured]
    return (
        f"\n`auto` took at most {MOST_TO_BEST:g} of the best single strategy's step in"
        f" {sum(within)} of {len(within)} cases.\n"
    )


def _machine(document: Mapping[str, Any], measured: Mapping[str, Mapping[str, Any]]) -> str:
    if not measured:
        return "Nothing was measured yet.\n"
    cases_on: dict[str, list[str]] = {}
    for name, case in measured.items():
        machine = case.get("machine", document["machine"])
        versions = case.get("versions", document["versions"])
        text = (
            f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}; "
            f"{', '.join(f'{package} {version}' for package, version in versions.items())}"
        )
        cases_on.setdefault(text, []).append(name)
    most = max(cases_on, key=lambda text: len(cases_on[text]))
    machines = "".join(
        f"{text}; " if text == most else f"{text} (on it: {', '.join(names)}); "
        for text, names in cases_on.items()
    )
    loads = [case["load_average"] for case in measured.values()]
    return (
        f"{machines}{min(case['rounds'] for case in measured.values())} rounds a case; load average"
        f" {min(loads):.1f} to {max(loads):.1f} before them.\n"
    )


def _one_worker(case: Mapping[str, Any]) -> tuple[str, str]:
    """Milliseconds of one worker, and the ratio of `auto`; empty if not measured."""
    if "auto_to_one_worker" not in case:
        return "", ""
    return (
        f"{case['median_seconds']['one-worker'] * 1e3:.1f}",
        results.ratio_text(case["auto_to_one_worker"]),
    )


def _describe_plan(plan: Mapping[str, Any]) -> str:
    def count(number: int, what: str) -> str:
        return f"{number} {what}{'s' * (number != 1)}"

    return (
        f"{plan['strategy']}, {count(plan['groups'], 'group')}, {count(plan['streams'], 'stream')},"
        f" {count(plan['threads'], 'thread')}"
    )
