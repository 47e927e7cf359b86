"""The evaluation of steps with fewer bytes; `benchmarks.step_time` has the test of its job."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results, step_time, wire_bytes

[CASE] = [
    case
    for case in wire_bytes.all_cases()
    if case.name == "cnn5m, 5gbit, libra:wire_dtype=bfloat16"
]
SECONDS = {CASE.strategy: [0.04, 0.06, 0.03], CASE.baseline: [0.05, 0.05, 0.06]}


def document(wire_dtype: str | None = "bfloat16") -> dict[str, Any]:
    """Returns what `benchmarks.step_time` writes; plans in the tensors' dtype name none."""
    plan = {} if wire_dtype is None else {"wire_dtype": wire_dtype}
    return {
        "strategies": results.summaries(SECONDS),
        "seconds": SECONDS,
        "plan": {CASE.strategy: plan, CASE.baseline: {}},
        "rounds": 3,
        "machine": {"cpu": "a CPU", "cores": 2, "memory_bytes": 2**34, "kernel": "6"},
        "versions": {"numpy": "2"},
    }


@pytest.mark.parametrize("wire_dtype", ["bfloat16", None])
def test_ratios_are_those_within_rounds(wire_dtype: str | None) -> None:
    saved = {CASE.name: wire_bytes.summary(CASE, document(wire_dtype))}
    row = wire_bytes.blocks(saved, CASE.page)["wire_bytes"].splitlines()[2]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[0] == CASE.name
    assert cells[1].startswith("50.0 (") and cells[2].startswith("40.0 (")
    assert cells[3].startswith("0.800 (")  # of 0.8, 1.2 and 0.5
    assert cells[4:] == ["0.85, met", wire_dtype or "float32"]


def test_missed_goals_are_named() -> None:
    saved = {CASE.name: wire_bytes.summary(CASE, document())}
    saved[CASE.name]["ratio"]["median"] = 0.86
    assert "| 0.85, missed |" in wire_bytes.blocks(saved, CASE.page)["wire_bytes"]


def test_cases_are_distinct_and_their_commands_valid() -> None:
    cases = list(wire_bytes.all_cases())
    assert len({case.name for case in cases}) == len(cases) == 15
    for case in cases:
        names = {flag.removeprefix("--").partition("=")[0] for flag in case.command(3)[3:]}
        assert names <= set(step_time.FLAGS)


def test_saved_results_fill_both_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [tmp_path / name for name in (wire_bytes.ZERO_BLOCKS, wire_bytes.WIRE_FORMAT)]
    for page in pages:
        page.write_text("<!-- begin wire_bytes -->\n<!-- end wire_bytes -->\n")
    path = tmp_path / "wire_bytes.json"
    path.write_text(json.dumps({CASE.name: wire_bytes.summary(CASE, document())}))
    parsed = copy.deepcopy(wire_bytes.FLAGS)
    parsed(["wire_bytes", f"--document={tmp_path}", f"--json={path}", "--minutes=0"])
    monkeypatch.setattr(wire_bytes, "FLAGS", parsed)
    assert wire_bytes.main(["wire_bytes"]) == 0
    assert [CASE.name in page.read_text() for page in pages] == [False, True]
