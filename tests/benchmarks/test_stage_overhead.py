"""The evaluation of overheads of stages and bursts, and their table."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import stage_overhead
from tf_libra.model_parallel.planning.pipeline.spp import execution_orders
from tf_libra.specs.pipeline import PipelinePlan, PipelineStage

MICROBATCHES = 2
PLAN = PipelinePlan(
    tuple(
        PipelineStage(index, index + 1, (index,), order)
        for index, order in enumerate(execution_orders(2, MICROBATCHES))
    ),
    ("first", "last"),
    2,
    "spp",
)
# Seconds of forward, backward, deferred gradients and update, by stage and round.
COMPUTED = [[[1.0, 1.0, 2.0, 0.5]] * 3, [[1.0, 1.0, 0.0, 0.5]] * 3]
FOUND = {
    "seconds": {"one-worker": [10.0, 20.0, 10.0], "burst": [11.0, 21.0, 10.4], "stages": [9.0] * 3},
    "computed": COMPUTED,
    "plan": PLAN.to_document(),
}
SAVED: dict[str, Any] = {
    "rounds": 3,
    "machine": {"cpu": "CPU", "cores": 2, "memory_bytes": 2**30, "kernel": "1"},
    "versions": {"python": "3"},
}


def test_longest_path_is_the_schedule_without_transfers() -> None:
    """The second stage waits for a forward, and the first for the last backward."""
    path = stage_overhead.longest_path(PLAN, [rounds[0] for rounds in COMPUTED])
    assert path == pytest.approx(6 + 2 + 0.5)
    alone = [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    assert stage_overhead.longest_path(PLAN, alone) == pytest.approx(2 * MICROBATCHES)


def test_overheads_are_paired_by_rounds() -> None:
    found = stage_overhead.summary(FOUND)
    assert found["overheads"]["burst"]["median"] == pytest.approx(0.05)
    assert found["overheads"]["stages"]["median"] == pytest.approx(9 / 8.5 - 1)
    assert found["longest_path_seconds"] == pytest.approx(8.5)
    assert found["median_seconds"]["one-worker"] == np.median(FOUND["seconds"]["one-worker"])


@pytest.mark.parametrize(
    ("burst", "stages", "met"),
    [(0.05, 0.06, "burst"), (0.06, 0.01, "stages"), (0.0, 0.0, "both"), (1.0, 1.0, "neither")],
)
def test_table_names_what_meets_the_goal(burst: float, stages: float, met: str) -> None:
    case = stage_overhead.summary(FOUND) | SAVED
    case["overheads"] = {
        name: {"median": value, "p10": 0.0, "p90": 0.1}
        for name, value in (("burst", burst), ("stages", stages))
    }
    row = stage_overhead.blocks({"mlp": case})["stage_overhead"].splitlines()[2]
    assert row.startswith("| mlp | 10000.0 | 11000.0 | ") and row.endswith(f" | {met} |")


@pytest.mark.parametrize(("one_worker", "is_saved"), [([1.0, 1.2], True), ([1.0, 2.0], False)])
def test_results_of_a_disturbed_machine_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_worker: list[float], is_saved: bool
) -> None:
    page, path = tmp_path / "page.md", tmp_path / "saved.json"
    page.write_text("<!-- begin stage_overhead -->\n<!-- end stage_overhead -->\n")
    parsed = copy.deepcopy(stage_overhead.FLAGS)
    parsed(["stage_overhead", "--only=mlp", f"--json={path}", f"--document={page}"])
    monkeypatch.setattr(stage_overhead, "FLAGS", parsed)
    steps = dict.fromkeys(FOUND["seconds"], one_worker)
    computed = [stage[:2] for stage in COMPUTED]
    found = stage_overhead.summary(FOUND | {"seconds": steps, "computed": computed}) | SAVED
    monkeypatch.setattr(stage_overhead, "measure", lambda *_: found)
    assert stage_overhead.main(["stage_overhead"]) == (0 if is_saved else 1)
    assert path.exists() == is_saved
    assert ("Not measured." in page.read_text()) != is_saved


def test_saved_results_fill_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without time nothing is measured."""
    page, path = tmp_path / "page.md", tmp_path / "saved.json"
    page.write_text("<!-- begin stage_overhead -->\n<!-- end stage_overhead -->\n")
    path.write_text(json.dumps({"cnn5m": stage_overhead.summary(FOUND) | SAVED}))
    parsed = copy.deepcopy(stage_overhead.FLAGS)
    parsed(["stage_overhead", "--minutes=0", f"--json={path}", f"--document={page}"])
    monkeypatch.setattr(stage_overhead, "FLAGS", parsed)
    assert stage_overhead.main(["stage_overhead"]) == 0
    assert "| cnn5m | 10000.0 |" in page.read_text()
