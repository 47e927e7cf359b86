"""The goals of performance: what is kept of measurements, and which goals that misses."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from absl import flags

from benchmarks.performance import __main__ as performance
from benchmarks.performance import cases, document, outcome

HERE = {
    "machine": {"cpu": "a CPU", "cores": 2, "memory_bytes": 2**34, "kernel": "6"},
    "versions": {"numpy": "2"},
}
THERE = HERE | {"machine": HERE["machine"] | {"cpu": "another CPU"}}
ROOT = Path(__file__).resolve().parents[2]


def step_time(libra: list[float], best: list[float], steps: int = 60) -> dict[str, Any]:
    seconds = {"none": [0.1] * 3, "horovod": [0.3] * 3, "wfbp": best, "libra": libra}
    return {
        "seconds": seconds,
        "strategies": {
            name: {"median_seconds": sorted(samples)[1]} for name, samples in seconds.items()
        },
        "plan": {
            "libra": {"strategy": "libra", "groups": [{"num_threads": 1}, {"num_threads": 4}]}
        },
        "tuning": {"libra": {"steps": steps, "seconds": 12.0}},
    }


def truth(step: float, worst: float, bias: float, rank: float | None) -> dict[str, Any]:
    errors = {"median_error": step, "worst_error": worst, "bias": bias, "rank_correlation": rank}
    return {
        "step": errors,
        "backward": errors,
        "noise": 0.01,
        "drift": 1.1,
        "pace": [0.9, 1.0, 1.2],
        "measuring": {"steps": 22, "seconds": 2.5},
        "fits": {"difference": 0.1},
        "all_reduce": {
            kind: {"median_error": step, "noise": 0.1} for kind in ("alone", "overlapped")
        },
        "plans": [{"measured_step_seconds": step_seconds} for step_seconds in (0.1, 0.11, 0.12)],
    }


def plain(libra: list[float], mwms: list[float]) -> dict[str, Any]:
    seconds = {"none": [0.05] * 3, "one-worker": [0.1] * 3, "mwms": mwms, "libra": libra}
    return {
        "seconds": seconds,
        "strategies": {
            name: {"median_seconds": sorted(samples)[1]} for name, samples in seconds.items()
        },
    }


def one_worker(libra: float) -> dict[str, Any]:
    seconds = {"none": 0.1, "one-worker": 0.18, "horovod": 0.3, "libra": libra}
    return {
        "seconds": {name: [value] * 3 for name, value in seconds.items()},
        "strategies": {name: {"median_seconds": value} for name, value in seconds.items()},
        "rounds": 3,
    }


def test_the_plain_strategy_is_missed_by_too_little_gain() -> None:
    for libra, missed in ((0.075, 0), (0.076, 1)):
        result = outcome.of_plain(plain([libra] * 3, [0.1] * 3))
        assert len(outcome.misses("plain", result)) == missed


def test_step_is_compared_with_the_best_other_in_paired_rounds() -> None:
    result = outcome.of_step_time(step_time([0.2, 0.22, 0.24], [0.2, 0.2, 0.2]))
    assert result["best"] == "wfbp"
    assert result["to_best"]["median"] == pytest.approx(1.1)
    assert result["to_horovod"]["median"] == pytest.approx(0.22 / 0.3)
    assert result["plan"] == "libra, 2 groups, 1 to 4 threads"
    assert outcome.misses("step_time", result) == ["to the best 1.100, at most 1.020"]
    fast = outcome.of_step_time(step_time([0.19, 0.2, 0.2], [0.2, 0.2, 0.2], steps=61))
    assert outcome.misses("step_time", fast) == ["steps of tuning 61, at most 60"]


def test_predictions_miss_what_they_miss() -> None:
    assert outcome.misses("truth", outcome.of_truth(truth(0.03, 0.08, -0.02, 0.8))) == []
    missed = outcome.misses("truth", outcome.of_truth(truth(0.05, 0.09, -0.03, 0.7)))
    assert "step's bias 3.0%, at most 2.0%" in missed
    assert "backward's bias 3.0%, at most 2.0%" in missed
    assert "step's median error 5.0%, at most 3.0%" in missed
    assert "backward's worst error 9.0%, at most 8.0%" in missed
    assert missed[-1] == "1 - rank correlation 0.30, at most 0.20"
    # Some of its measuring and its single all-reduces.
    slow = truth(0.01, 0.02, 0.0, 0.9)
    slow["measuring"] = {"steps": 26, "seconds": 3.5}
    slow["all_reduce"]["alone"] = {"median_error": 0.2}
    slow["all_reduce"]["in_bucket"] = {"median_error": 2.0}
    slow["fits"] = {"difference": 0.15}
    assert outcome.misses("truth", outcome.of_truth(slow)) == [
        "all-reduces alone: median error 20.0%, at most 10.0%",
        "steps of measuring 26, at most 25",
        "seconds of measuring 3.5, at most 3.0",
        "rates of a second fit 15.0%, at most 10.0%",
    ]
    # Plans that lie within the noise have no order.
    alike = truth(0.01, 0.02, 0.0, -0.5) | {"noise": 0.05}
    assert outcome.misses("truth", outcome.of_truth(alike)) == []
    never = truth(0.01, 0.02, 0.0, 0.9)
    never["backward"] = dict.fromkeys(never["step"])
    assert outcome.misses("truth", outcome.of_truth(never)) == [
        "backward never measured 1, at most 0"
    ]


def test_goals_of_predictions_are_counted_over_all_that_was_measured() -> None:
    exact, far = truth(0.0, 0.0, 0.0, 0.8), truth(0.05, 0.09, -0.03, 0.7)
    alike = truth(0.01, 0.02, 0.0, -0.5) | {"noise": 0.05}
    never = truth(0.01, 0.02, 0.0, 0.9)
    never["backward"] = dict.fromkeys(never["step"])
    results = {
        str(index): {"truth": outcome.of_truth(measurement) | HERE}
        for index, measurement in enumerate((exact, far, alike, never))
    }
    goals = document.blocks({"cases": results})["goals"]
    for goal in (
        "in the median | 3 of 4",
        "their backward by at most 4% | 2 of 4",
        "no bias of the step above 2%, none missed by more than 8% | 3 of 4",
        "no bias of the backward above 2%, none missed by more than 8% | 2 of 4",
        "four times the noise | 2 of 3",
        "alone and overlapped, are missed by at most 10% in the median | 4 of 4",
        "are known that well (half of the noise) | 4 of 4",
        "measuring takes at most 25 steps and 3 s, without trials | 4 of 4",
        "rates of two fits in a row differ by at most 10% | 4 of 4",
    ):
        assert goal in goals, goals


def test_wire_is_won_back_or_not() -> None:
    for share, missed in ((0.7, 0), (0.69, 1)):
        assert len(outcome.misses("wire", {"shares": {"libra": share}})) == missed


def test_every_case_has_its_commands_and_rows() -> None:
    every = list(cases.all_cases())
    assert len({case.name for case in every}) == len(every) == 20
    of_plain = [case for case in every if case.model in cases.OF_PLAIN]
    assert [list(case.commands(50)) for case in of_plain] == [["plain"], ["plain"]]
    every = [case for case in every if case not in of_plain]
    results: dict[str, Any] = {case.name: {} for case in every}
    for case in every:
        commands = case.commands(50)
        assert ("truth" in commands) == case.pinned
        assert ("wire" in commands) == (case.pinned and case.rate == "5gbit")
        assert ("--unpinned" in commands["step_time"]) != case.pinned
        assert ("plain" in commands) == (case.pinned and case.rate != "1gbit")
        assert "--strategies=none,one-worker,horovod,libra" in commands["one_worker"]
        results[case.name]["step_time"] = (
            outcome.of_step_time(step_time([0.2] * 3, [0.2] * 3)) | HERE
        )
    results[every[0].name]["plain"] = outcome.of_plain(plain([0.08] * 3, [0.1] * 3)) | THERE
    results[every[0].name]["truth"] = outcome.of_truth(truth(0.02, 0.03, 0.0, None)) | HERE
    results[every[0].name]["one_worker"] = outcome.of_one_worker(one_worker(0.2)) | HERE
    results[every[1].name]["one_worker"] = outcome.of_one_worker(one_worker(0.12)) | HERE
    of_all = {"cases": results}
    blocks = document.blocks(of_all)
    gains = document.gains(of_all)["gains"]
    assert (
        "| cnn5m, one host | A | 100 | 300 | 200 | 1.50 x | 180 | 0.90 x | 1.25 x: 100 and 80 ms |"
        in gains
    )
    assert "| mlp, one host | A | 100 | 300 | 200 | 1.50 x | 180 | 1.50 x |  |" in gains
    assert "| transformer, one host | A | 100 | 300 | 200 | 1.50 x |  |  |  |" in gains
    assert "| 180.0 | 1.111 (1.111 to 1.111) | 60 steps" in blocks["steps"]
    assert "| 100.0 | 0.800 (0.800 to 0.800) | to the plain" in blocks["plain"]
    assert "trains the joint batch | 1 of 2 cases" in blocks["goals"]
    assert gains.count("| cnn5m") == 3  # pinned ones
    assert blocks["steps"].count("| cnn5m, one host, pinned | A |") == 1
    # Figures of several machines are kept apart.
    assert "| cnn5m, one host, pinned | B |" in blocks["plain"]
    assert blocks["machine"].splitlines() == [
        "- A: a CPU, 2 cores, 16.0 GiB, Linux 6; numpy 2.",
        "- B: another CPU, 2 cores, 16.0 GiB, Linux 6; numpy 2.",
    ]
    assert "18 of 18 cases" in blocks["goals"]
    assert "1 of 1 cases" in blocks["goals"]
    assert "0 of 0 cases" in blocks["goals"]  # of the wire nothing was measured
    for results_of_case in results.values():
        results_of_case.pop("one_worker", None)
    assert "one worker" not in document.gains({"cases": results})["gains"]
    assert "one worker" not in document.blocks({"cases": results})["steps"]


def test_only_the_benchmarks_that_are_named_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = next(cases.all_cases()).commands(50) | {"wire": []}
    for benchmarks, expected in (
        ([], ["step_time", "truth", "one_worker", "plain", "wire"]),
        (["one_worker"], ["one_worker"]),
        (["wire"], ["step_time", "wire"]),
    ):
        copied = copy.deepcopy(performance.FLAGS)
        copied([performance.__name__, f"--benchmarks={','.join(benchmarks)}"])
        monkeypatch.setattr(performance, "FLAGS", copied)
        assert performance._missing(commands, {}) == expected
        results: dict[str, Any] = {name: {} for name in commands}
        assert performance._missing(commands, results) == []
    with pytest.raises(flags.IllegalFlagValueError, match="step_time, truth"):
        copy.deepcopy(performance.FLAGS)([performance.__name__, "--benchmarks=two_workers"])


def test_document_is_filled_in_from_saved_results(tmp_path: Path) -> None:
    """With no time left nothing is measured."""
    json_path, page = tmp_path / "kept.json", tmp_path / "page.md"
    first = next(cases.all_cases()).name
    of_case = {"step_time": outcome.of_step_time(step_time([0.2] * 3, [0.25] * 3)) | HERE}
    json_path.write_text(json.dumps({"cases": {first: of_case}}))
    command = [sys.executable, "-m", "benchmarks.performance", "--minutes=0"]
    done = subprocess.run(
        [*command, f"--json={json_path}", f"--document={page}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "| cnn5m, one host | A |" in page.read_text()
    assert f"| {first} | A | 200.0 | wfbp 250.0 | 0.800" in page.read_text()
