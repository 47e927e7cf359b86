"""The accuracy of the model: the evaluation of measurements, and one real run on a tiny model."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import truth
from tf_libra import Plan

ROOT = Path(__file__).resolve().parents[2]
MODELS = Path(__file__).with_name("tiny_models.py")


def measured(step: list[float], predicted: float, backward: list[float]) -> dict[str, Any]:
    return {
        "plan": {"groups": [{"num_threads": 1}]},
        "predicted_backward_seconds": predicted / 2,
        "backward_seconds": backward,
        "predicted_step_seconds": predicted,
        "step_seconds": step,
    }


def test_errors_are_of_medians_and_noise_of_halves() -> None:
    plans = [
        measured([1.0, 1.0, 1.0, 9.0], 1.1, [0.5]),
        measured([2.0, 2.0, 2.2, 2.2], 2.1, [1.0, 1.1, 9.0]),
        measured([4.0, 4.0, 4.0, 4.0], 3.0, []),
    ]
    found = truth.judged(plans)
    assert found["step"]["median_error"] == pytest.approx(0.1)
    assert found["step"]["worst_error"] == pytest.approx(0.25)
    assert found["step"]["bias"] == pytest.approx(0)
    assert found["step"]["rank_correlation"] == pytest.approx(1)
    assert [row["measured_step_seconds"] for row in found["plans"]] == [1.0, 2.1, 4.0]
    assert found["plans"][2]["measured_backward_seconds"] is None
    assert found["backward"]["worst_error"] == pytest.approx(0.1)
    noise = [row["noise"] for row in found["plans"]]
    assert noise == pytest.approx([4.0, 0.2 / 2.1, 0.0])
    assert found["noise"] == pytest.approx(0.2 / 2.1)


def test_what_could_not_be_measured_has_no_errors() -> None:
    found = truth.judged([measured([1.0, 1.0], 1.0, [])] * 2)
    assert found["backward"] == dict.fromkeys(
        ("median_error", "worst_error", "bias", "rank_correlation")
    )
    assert found["step"]["rank_correlation"] is None


@pytest.mark.workers
@pytest.mark.parametrize(("strategy", "streams"), [("libra", {1}), ("asc-wfbp", {1, 2})])
def test_plans_that_tuning_has_not_seen_are_run_and_predicted(
    strategy: str, streams: set[int], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "benchmarks.truth", f"--model={MODELS}:six"]
    flags = ["--plans=3", "--rounds=2", f"--strategy={strategy}", f"--json={tmp_path}/out.json"]
    done = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    plans = [Plan.from_json(json.dumps(row["plan"])) for row in document["plans"]]
    assert len({plan.fingerprint for plan in plans}) == 3
    assert {plan.num_streams for plan in plans} == streams
    gamma = document["settings"]["contention"]
    assert {plan.contention for plan in plans if plan.num_streams > 1} <= {gamma}
    for row in document["plans"]:
        assert row["measured_step_seconds"] > 0
        assert row["predicted_step_seconds"] > row["predicted_backward_seconds"] > 0
        assert row["measured_backward_seconds"] > 0
    for of in ("backward", "step"):
        assert set(document[of]) == {"median_error", "worst_error", "bias", "rank_correlation"}
    assert np.isfinite(document["step"]["median_error"])
    assert "after" in done.stdout and "step: median error" in done.stdout
    assert document["drift"] > 0
    # What ends within a step takes less than it.
    for row in document["plans"]:
        assert row["measured_backward_seconds"] < row["measured_step_seconds"]
