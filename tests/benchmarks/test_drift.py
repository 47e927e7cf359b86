"""The fate of plans while links and cores change: one run for real, on a tiny model."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import drift

ROOT = Path(__file__).resolve().parents[2]
MODELS = Path(__file__).with_name("tiny_models.py")


def test_every_stage_is_reported(make_cluster: Callable[..., Any], tmp_path: Path) -> None:
    """`make_cluster`: only if there are namespaces, and not while another cluster is up."""
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks.drift", f"--model={MODELS}:one"]
    done = subprocess.run(
        [*command, "--steps=20", f"--json={out}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    names = [stage["name"] for stage in document["stages"]]
    assert names == ["as tuned", "links slow", "links back", "core shared", "core back"]
    for stage in document["stages"]:
        assert stage["steps"] == 20
        assert stage["plans"]
        assert stage["last_step_seconds"] > 0
        assert 0 <= stage["tried_share"] < 1
    assert any(line.startswith("run: plan") for line in document["log"])
    for name in names:
        assert f"| {name} |" in done.stdout


def test_a_stage_is_reported_by_its_steps_without_trials() -> None:
    """Also where its first and last ones did: no number is NaN, which JSON has none of."""
    tried = [True] * 3 + [False] * 4 + [True] * 13
    reported = drift.summary([5.0] * 3 + [1.0, 2.0, 3.0, 4.0] + [5.0] * 13, tried)
    assert reported["first_step_seconds"] == 1.0 and reported["last_step_seconds"] == 4.0
    assert reported["tried_steps"] == 16 and reported["tried_share"] == pytest.approx(16 / 90)
    assert drift.summary([1.0] * 20, [False] * 20)["tried_share"] == 0
    with pytest.raises(ValueError, match=r"all 20 steps"):
        drift.summary([1.0] * 20, [True] * 20)


def test_model_that_is_none_is_one_line() -> None:
    command = [sys.executable, "-m", "benchmarks.drift", "--model=nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("drift: ")
    assert "nothing" in done.stderr
