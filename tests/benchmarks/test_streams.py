"""The comparison of streams: its cases, what is kept of them, and the tables."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import step_time, variants
from benchmarks.streams import cases, outcome

ROOT = Path(__file__).resolve().parents[2]


def measured(auto: float = 0.2) -> dict[str, Any]:
    """Returns a document as `benchmarks.step_time` writes it."""
    base = dict.fromkeys(cases.STRATEGIES, 0.25) | {"none": 0.1, "horovod": 0.4, "libra": 0.2}
    base |= {"auto": auto, cases.ONE_CONNECTION: 0.5, cases.STREAMS: 0.3}
    seconds = {name: [median, median * 1.1, median * 0.9] for name, median in base.items()}
    group = {"num_threads": 2, "stream": 1}
    plan = {"strategy": "aiacc", "groups": [{"num_threads": 1}, group]}
    ours = [name for name in base if variants.is_ours(name)]
    return {
        "seconds": seconds | {"horovod:grouped": seconds["horovod"]},
        "strategies": {name: {"median_seconds": median} for name, median in base.items()},
        "plan": dict.fromkeys(ours, plan),
        "tuning": {name: {"steps": 100, "seconds": 12.3} for name in ours},
        "rounds": 3,
        "machine": {"cpu": "another CPU", "cores": 4, "kernel": "7", "load_average": 0.1},
        "versions": {"numpy": "2"},
    }


def test_the_best_is_a_single_strategy_of_its_own() -> None:
    summary = outcome.summarize(measured())
    assert summary["best"] == "libra"
    assert summary["auto_to_best"]["median"] == pytest.approx(1.0)
    assert summary["to_horovod"]["aiacc"]["median"] == pytest.approx(0.625)
    assert summary["auto_to_one_worker"]["median"] == pytest.approx(0.8)
    assert summary["streams_to_one"]["median"] == pytest.approx(0.6)
    assert summary["plans"]["auto"] == {
        "strategy": "aiacc",
        "groups": 2,
        "threads": 2,
        "streams": 2,
    }


def test_every_case_has_a_command_that_is_understood_and_rows() -> None:
    every = list(cases.all_cases())
    assert len({case.name for case in every}) == len(every) == 20
    for case in every:
        strategies = case.command(50)[-1]
        assert step_time._are_strategies(strategies.partition("=")[2].split(","))
    summaries = {case.name: {} for case in every} | {
        every[0].name: outcome.summarize(measured()),
        every[1].name: outcome.summarize(measured(auto=0.21)),
    }
    machine = {"cpu": "a CPU", "cores": 2, "kernel": "6"}
    blocks = outcome.blocks({"cases": summaries, "machine": machine, "versions": {"numpy": "2"}})
    assert "| vgg, one host | 100.0 | 400.0 | 0.625" in blocks["streams_compared"]
    assert "| one worker, ms | auto to one worker |" in blocks["streams_compared"]
    assert "| 250.0 | 0.840 (0.840 to 0.840) |" in blocks["streams_compared"]
    assert "| vgg, one host | 500.0 | 300.0 | 0.600" in blocks["streams_gained"]
    assert "aiacc, 2 groups, 2 streams, 2 threads" in blocks["streams_chosen"]
    assert "in 1 of 2 cases" in blocks["streams_chosen"]
    assert "3 rounds a case" in blocks["streams_machine"]
    assert blocks["streams_machine"].startswith("another CPU, 4 cores")
    # Results of earlier versions lack this column and the machine of each case.
    for results_of_case in summaries.values():
        results_of_case.pop("auto_to_one_worker", None)
    summaries[every[1].name].pop("machine", None)
    blocks = outcome.blocks({"cases": summaries, "machine": machine, "versions": {"numpy": "2"}})
    assert "one worker" not in blocks["streams_compared"]
    assert f"a CPU, 2 cores, Linux 6; numpy 2 (on it: {every[1].name})" in blocks["streams_machine"]


def test_tables_are_filled_in_from_saved_results(tmp_path: Path) -> None:
    """With no time left nothing is measured."""
    json_path, page = tmp_path / "kept.json", tmp_path / "page.md"
    page.write_text((ROOT / "docs" / "benchmarks.md").read_text())
    machine = {"cpu": "a CPU", "cores": 2, "kernel": "6"}
    first = next(cases.all_cases()).name
    document = {"cases": {first: outcome.summarize(measured())}, "machine": machine, "versions": {}}
    json_path.write_text(json.dumps(document))
    command = [
        sys.executable,
        "-m",
        "benchmarks.streams",
        f"--json={json_path}",
        f"--document={page}",
    ]
    subprocess.run([*command, "--minutes=0"], cwd=ROOT, check=True)
    assert page.read_text().count(f"| {first} |") == 3
    assert json.loads(json_path.read_text())["cases"][first] == document["cases"][first]
