"""The loop over cases of a benchmark, each of which is a program that writes JSON."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks import case_flags
from benchmarks.case_runs import measure_cases

WRITES = "import sys; open(sys.argv[2].removeprefix('--json='), 'w').write(sys.argv[1])"


@dataclass(frozen=True)
class Case:
    """A program that writes its rounds, or fails."""

    name: str
    fails: bool = False

    def command(self, rounds: int) -> list[str]:
        script = "exit(3)" if self.fails else WRITES
        return [sys.executable, "-c", script, json.dumps({"rounds": rounds})]


def doubled(case: Case, document: Mapping[str, Any]) -> dict[str, Any] | None:
    return None if case.name == "bad" else {case.name: 2 * document["rounds"]}


def test_missing_results_are_measured_and_saved(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"old": {"old": 1}, "partial": {}}))
    values = flags.FlagValues()
    case_flags.define(values, "cases", "docs/cases.md", rounds=3)
    values(["program", f"--json={path}", "--only="])
    cases = [Case("old"), Case("partial"), Case("gone", fails=True), Case("bad"), Case("new")]
    expected = {"old": {"old": 1}, "partial": {"partial": 6}, "new": {"new": 6}}
    assert measure_cases("test", values, cases, doubled, bool) == (expected, 2)
    assert json.loads(path.read_text()) == expected
    values(["program", f"--json={path}", "--only=old", "--remeasure"])
    expected["old"] = {"old": 6}
    assert measure_cases("test", values, cases, doubled, bool) == (expected, 0)
    values(["program", f"--json={path}", "--minutes=0"])
    assert measure_cases("test", values, cases, doubled, bool) == (expected, 0)
