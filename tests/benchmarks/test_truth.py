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
        "plan": {"groups": [{"num_threads": 1}], "num_workers": 2},
        "predicted_backward_seconds": predicted / 2,
        "backward_seconds": backward,
        "predicted_step_seconds": predicted,
        "step_seconds": step,
        "all_reduces": [],
    }


def all_reduce(
    overlapped: float, exclusive: float, predicted: float, noise: float = 0.0
) -> dict[str, Any]:
    return {
        "num_bytes": 4,
        "num_threads": 1,
        "overlapped_seconds": overlapped,
        "exclusive_seconds": exclusive,
        "predicted_seconds": predicted,
        "noise": noise,
    }


def test_errors_are_of_medians_and_noise_of_halves() -> None:
    plans = [
        measured([1.0, 1.0, 1.0, 9.0], 1.1, [0.5]),
        measured([2.0, 2.0, 2.2, 2.2], 2.1, [1.0, 1.1, 9.0]),
        measured([4.0, 4.0, 4.0, 4.0], 3.0, []),
    ]
    found = truth.evaluate(plans)
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


def test_unmeasured_case_has_no_errors() -> None:
    found = truth.evaluate([measured([1.0, 1.0], 1.0, [])] * 2)
    assert found["backward"] == dict.fromkeys(
        ("median_error", "worst_error", "bias", "rank_correlation")
    )
    assert found["step"]["rank_correlation"] is None


def test_an_all_reduce_counts_where_most_of_it_ran() -> None:
    plan = measured([1.0, 1.0], 1.0, [0.5])
    plan["all_reduces"] = [
        all_reduce(0.0, 1.0, 1.2, noise=0.9),
        all_reduce(0.4, 0.6, 0.9, noise=0.1),
        all_reduce(0.0, 2.0, 2.0, noise=0.2),
        all_reduce(0.6, 0.4, 2.0),
    ]
    found = truth.evaluate([plan, measured([1.0, 1.0], 1.0, [0.5])])["all_reduce"]
    assert found["alone"]["count"] == 3
    assert found["alone"]["median_error"] == pytest.approx(0.1)
    assert found["alone"]["bias"] == pytest.approx(0.0)
    assert found["alone"]["noise"] == pytest.approx(0.2)
    assert found["overlapped"]["count"] == 1
    assert found["overlapped"]["bias"] == pytest.approx(1.0)
    none = truth.evaluate([measured([1.0, 1.0], 1.0, [])])["all_reduce"]
    assert none["alone"] == {
        "count": 0,
        "median_error": None,
        "bias": None,
        "hindsight_error": None,
        "noise": None,
    }


def test_an_all_reduce_in_the_bucket_of_a_link_counts_apart() -> None:
    plan = measured([1.0, 1.0], 1.0, [0.5])
    plan["all_reduces"] = [all_reduce(0.2, 0.8, 1.1), all_reduce(0.8, 0.2, 4.0)]
    plan["all_reduces"][0]["num_bytes"] = 5
    found = truth.evaluate([plan, measured([1.0, 1.0], 1.0, [0.5])], 4)["all_reduce"]
    assert {kind: errors["count"] for kind, errors in found.items()} == {
        "alone": 1,
        "overlapped": 0,
        "in_bucket": 1,
    }
    assert found["in_bucket"]["bias"] == pytest.approx(3.0)


def test_hindsight_error_is_of_a_line_over_bytes() -> None:
    """Ten all-reduces, of which four take ten times as long as the line of the others."""
    plan = measured([1.0, 1.0], 1.0, [0.5])
    for index in range(10):
        num_bytes = 10_000 * 2**index
        seconds = (1e-4 + 1e-9 * num_bytes) * (10 if index in (1, 4, 5, 8) else 1)
        plan["all_reduces"].append(all_reduce(0.0, seconds, 2 * seconds) | {"num_bytes": num_bytes})
    alone = truth.evaluate([plan, measured([1.0, 1.0], 1.0, [0.5])])["all_reduce"]["alone"]
    assert alone["median_error"] == pytest.approx(1.0)
    assert alone["hindsight_error"] < 0.02
    for row in plan["all_reduces"][::2]:
        row["exclusive_seconds"] *= 3
    alone = truth.evaluate([plan, measured([1.0, 1.0], 1.0, [0.5])])["all_reduce"]["alone"]
    assert alone["hindsight_error"] > 0.2


def test_fits_differ_by_the_largest_change_of_a_rate() -> None:
    rates = {"compute": [[0.5, 0.4], [0.5, 0.3]], "overlapped": [[2e9, 1e9], [2.2e9, 1e9]]}
    found = truth.compare_fits({"threads": [1, 2], "rates": rates})
    assert found == {"threads": [1, 2], "rates": rates, "difference": pytest.approx(0.25)}


@pytest.mark.workers
def test_plans_that_tuning_has_not_seen_are_run_and_predicted(tmp_path: Path) -> None:
    """Plans have one stream or two; those of `libra`, the default, run in test_many_cores.py."""
    command = [sys.executable, "-m", "benchmarks.truth", f"--model={MODELS}:six"]
    flags = ["--plans=3", "--rounds=2", "--strategy=asc-wfbp", f"--json={tmp_path}/out.json"]
    done = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    plans = [Plan.from_json(json.dumps(row["plan"])) for row in document["plans"]]
    assert len({plan.fingerprint for plan in plans}) == 3
    assert {plan.num_streams for plan in plans} == {1, 2}
    gamma = document["settings"]["contention"]
    assert {plan.contention for plan in plans if plan.num_streams > 1} <= {gamma}
    for row in document["plans"]:
        assert row["measured_step_seconds"] > 0
        assert row["predicted_step_seconds"] > row["predicted_backward_seconds"] > 0
        assert row["measured_backward_seconds"] > 0
    for quantity in ("backward", "step"):
        assert set(document[quantity]) == {
            "median_error",
            "worst_error",
            "bias",
            "rank_correlation",
        }
    assert np.isfinite(document["step"]["median_error"])
    counts = [errors["count"] for errors in document["all_reduce"].values()]
    alone = [
        row
        for row in document["plans"]
        if max(g.get("stream", 0) for g in row["plan"]["groups"]) == 0
    ]
    assert sum(counts) == sum(len(row["all_reduces"]) for row in alone) > 0
    for each in (each for row in alone for each in row["all_reduces"]):
        assert each["predicted_seconds"] > 0 and each["noise"] >= 0
    assert "after" in done.stdout and "step: median error" in done.stdout
    assert document["drift"] > 0
    measuring = document["measuring"]
    assert 0 < measuring["steps"] <= min(25, document["settings"]["tuning_steps"])
    assert measuring["seconds"] > sum(measuring["first_seconds"]) > 0
    fits = document["fits"]
    assert fits["difference"] >= 0
    for both in fits["rates"].values():
        assert np.shape(both) == (2, len(fits["threads"]))
        assert np.min(both) > 0
    # What ends within a step takes less than it.
    for row in document["plans"]:
        assert row["measured_backward_seconds"] < row["measured_step_seconds"]
