"""The evaluation of speedups over one worker; `benchmarks.step_time` has the test of its job."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results, speedup, step_time

SECONDS = {
    "one-worker": [0.06, 0.06, 0.09],
    "horovod": [0.2, 0.2, 0.2],
    "libra": [0.19, 0.18, 0.19],
    "spp:num_microbatches=4": [0.06, 0.07, 0.07],
    "deeppool": [0.04, 0.05, 0.04],
    "auto": [0.06, 0.06, 0.09],
}
DOCUMENT: dict[str, Any] = {
    "strategies": results.summaries(SECONDS),
    "ratios": results.ratios(SECONDS),
    "plan": {
        "libra": {"groups": [], "predicted_seconds": 0.1},
        "spp:num_microbatches=4": {"predicted_seconds": 0.056},
        "deeppool": {"iteration_seconds": 0.05},
        "auto": {"rank": 0},
    },
    "tuning": {"auto": {"steps": 140, "seconds": 61.2}},
    "rounds": 3,
    "machine": {"cpu": "a CPU", "cores": 2, "memory_bytes": 2**34, "kernel": "6"},
    "versions": {"numpy": "2"},
}
CASE = "cnn5m, 2 workers, 1gbit, SGD"


def test_speedup_is_paired_and_the_least_median_is_the_fastest() -> None:
    summary = speedup.summary(DOCUMENT)
    assert summary["predicted_seconds"] == {"spp:num_microbatches=4": 0.056, "deeppool": 0.05}
    row = speedup.blocks({CASE: summary})["speedup"].splitlines()[2]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    # Median of 19/6, 18/6 and 19/9 is 3.
    assert cells[:4] == [CASE, "60", "200, 0.30 x", "190, 0.33 x"]
    assert cells[-3:] == ["60, 1.00 x (one rank)", "deeppool", "56, 50"]


def test_goals_count_predictions_and_slower_cases() -> None:
    goals = speedup.blocks({CASE: speedup.summary(DOCUMENT)})["speedup_goals"]
    assert "25%, 25% at worst, in 2 predictions" in goals  # 70 of 56 ms, and 40 of 50
    assert "slower in 1 of 1" in goals
    assert "in 0 of 1 cases, at worst 1.50" in goals  # 60 of 40 ms
    assert "in 1 of 1 cases, at worst 1.00" in goals
    assert "`auto` is 1.15 x as fast as one worker | 1.00 x |" in goals
    assert "| at most 140 steps, in 1 cases |" in goals
    assert "| at most 61.2 s, in 1 cases |" in goals


def test_cases_saved_before_auto_was_measured_stay_in_the_table() -> None:
    summary = speedup.summary(DOCUMENT)
    del summary["median_seconds"]["auto"], summary["to_one_worker"]["auto"], summary["tuning"]
    assert "|  | deeppool | 56, 50 |" in speedup.blocks({CASE: summary})["speedup"]
    assert "0.33 x" in speedup.readme_blocks({CASE: summary})["speedup"]


@pytest.mark.parametrize(
    ("name", "is_disturbed"), [("one-worker", True), ("libra", False), ("horovod", False)]
)
def test_case_is_disturbed_if_steps_without_a_link_spread_widely(
    name: str, is_disturbed: bool
) -> None:
    steps = {name: {"p10_seconds": 1.0, "p90_seconds": 1.25} for name in SECONDS}
    assert not speedup.is_disturbed({"strategies": steps})
    steps[name] = {"p10_seconds": 1.0, "p90_seconds": 1.3}
    assert speedup.is_disturbed({"strategies": steps}) == is_disturbed


def test_cases_are_distinct_and_their_commands_valid() -> None:
    cases = list(speedup.all_cases())
    assert len({case.name for case in cases}) == len(cases) == 54
    assert cases[0].name == "cnn5m, 2 workers, one host, SGD"
    for case in cases:
        names = {flag.removeprefix("--").partition("=")[0] for flag in case.command(3)[3:]}
        assert names <= set(step_time.FLAGS)


def test_saved_results_fill_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, json_path, readme = (tmp_path / name for name in ("page.md", "speedup.json", "README.md"))
    readme.write_text("<!-- begin speedup -->\n<!-- end speedup -->\n")
    marks = "".join(
        f"<!-- begin {name} -->\n<!-- end {name} -->\n" for name in ("speedup", "speedup_goals")
    )
    page.write_text(f"<!-- begin goals -->\nstay\n<!-- end goals -->\n{marks}")
    json_path.write_text(json.dumps({CASE: speedup.summary(DOCUMENT)}))
    parsed = copy.deepcopy(speedup.FLAGS)
    command = ["speedup", f"--document={page}", f"--readme={readme}", f"--json={json_path}"]
    parsed([*command, "--minutes=0"])
    monkeypatch.setattr(speedup, "FLAGS", parsed)
    assert speedup.main(["speedup"]) == 0
    assert "\nstay\n" in page.read_text() and f"| {CASE} |" in page.read_text()
    assert f"| {CASE} | 0.30 x |" in readme.read_text()
