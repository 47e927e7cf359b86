"""Workers with several cores: cases, the budget, the document, and one real run on a tiny model."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from absl import flags

from benchmarks.many_cores import __main__ as many_cores
from benchmarks.many_cores import cases, outcome
from benchmarks.many_cores.cases import Case, Shape
from benchmarks.markdown import fill
from tf_libra import ContentionModel

ROOT = Path(__file__).resolve().parents[2]
PAGE = "before\n<!-- begin many_cores -->\n<!-- end many_cores -->\nafter\n"
MODELS = Path(__file__).with_name("tiny_models.py")
HERE = {
    "machine": {"cpu": "a CPU", "cores": 16, "memory_bytes": 2**37, "kernel": "6"},
    "versions": {"tensorflow": "2.21.0"},
}


def test_sixteen_cores_are_shared_by_two_four_and_eight_workers() -> None:
    assert cases.shapes_of(16) == (Shape(2, 8), Shape(4, 4), Shape(8, 2))
    assert cases.shapes_of(2) == (Shape(2, 1),)


def test_every_case_is_measured_with_both_optimizers_and_predicted() -> None:
    found = list(cases.all_cases(["cnn5m", "mlp"], cases.shapes_of(16), [None, "10gbit"]))
    assert len(set(found)) == len(found) == 2 * 3 * 2 * len(cases.BENCHMARKS)
    assert len({case.name for case, _ in found}) == 2 * 3 * 2


def test_budget_leaves_out_cases_that_would_not_end_in_time() -> None:
    now = [100.0]
    saved: dict[tuple[Case, str], dict[str, Any]] = {}
    wanted = [
        (Case("m", shape, None), benchmark)
        for benchmark in ("sgd", "truth")
        for shape in cases.shapes_of(16)
    ]
    seconds = {"sgd": 30.0, "truth": 1.0}

    def measure(case: Case, benchmark: str, left: float) -> dict[str, Any] | None:
        assert now[0] + left == 180.0
        now[0] += seconds[benchmark]
        return None if case.shape.workers == 4 else {"of": benchmark}

    def save(case: Case, benchmark: str, document: dict[str, Any]) -> None:
        saved[case, benchmark] = document

    failed, left_out = many_cores.run_cases(wanted, 80.0, measure, save, lambda: now[0])
    # Two of 30 s leave 20 s: not enough for the third, but for the quicker benchmark.
    assert left_out == [f"{wanted[2][0].name}, sgd"]
    assert failed == [f"{wanted[1][0].name}, sgd", f"{wanted[4][0].name}, truth"]
    assert set(saved) == {wanted[0], wanted[3], wanted[5]}


def test_page_says_that_nothing_was_measured_until_there_is_a_result() -> None:
    for empty in (None, {"cases": {}, "notes": []}, {"cases": {"x": {}}, "notes": []}):
        page = fill(PAGE, outcome.blocks(empty), prefix="many_cores")
        assert "Not measured" in page


def test_curves_and_steps_of_a_result_stand_in_the_page() -> None:
    model = ContentionModel(
        num_workers=2,
        hop_latency=1e-5,
        compute=(1.0, 0.1),
        overlapped=(1e9, 0.0, 1.0),
        exclusive=(2e9, 0.0, 1.0),
        exponent=1.0,
    )
    found = outcome.curves(json.loads(model.to_json()))
    assert found["slowdown"] == pytest.approx([1 / (1 - 0.1 * r) for r in found["threads"]])
    assert found["overlapped"] == pytest.approx([1e9] * 4)
    assert found["exclusive"] == pytest.approx([2e9] * 4)
    seconds = {
        "none": [0.01] * 2,
        "one-worker": [0.04] * 2,
        "wfbp": [0.02] * 2,
        "libra": [0.03] * 2,
    }
    document = HERE | {
        "seconds": seconds,
        "strategies": {name: {"median_seconds": samples[0]} for name, samples in seconds.items()},
        "plan": {"libra": {"strategy": "wfbp", "groups": [{"num_threads": 3}]}},
        "tuning": {},
        "rounds": 2,
        "settings": {"np": 2},
    }
    errors = {"median_error": 0.011, "worst_error": 0.02, "bias": -0.01, "rank_correlation": 1.0}
    truth = HERE | {"step": errors, "backward": errors, "noise": 0.01, "curves": found}
    result = {"sgd": outcome.summarize("sgd", document), "truth": truth}
    assert result["sgd"]["best"] == "wfbp"
    assert result["sgd"]["ratios"]["wfbp"]["libra"]["median"] == pytest.approx(1.5)
    [page] = outcome.blocks({"cases": {"a case": result}, "notes": ["a note"]}).values()
    for part in ("a CPU, 16 cores", "a note", "| wfbp 20.0 | 1.500", "1.1%, 2.0%, -1.0%", "1.67"):
        assert part in page, part


@pytest.mark.workers
def test_dry_run_measures_every_benchmark_and_a_second_run_has_nothing_left(
    tmp_path: Path,
) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    command = [
        *(sys.executable, "-m", "benchmarks.many_cores", f"--models={MODELS}:three"),
        *("--shapes=2x1", "--rates=", "--strategies=none,one-worker,wfbp"),
        *("--rounds=2", "--plans=2", "--budget_seconds=800"),
        *(f"--json={tmp_path}/out.json", f"--document={tmp_path}/page.md"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "out.json").read_text()
    [case] = json.loads(written)["cases"].values()
    assert set(case) == set(cases.BENCHMARKS)
    assert case["adam"]["settings"]["optimizer"].startswith("Adam")
    assert case["sgd"]["settings"]["cores_per_worker"] == 1
    assert min(case["truth"]["curves"]["exclusive"]) > 0
    assert "Not measured" not in (tmp_path / "page.md").read_text()
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0 and "benchmarks.step_time" not in again.stderr
    assert (tmp_path / "out.json").read_text() == written


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--shapes=two", "WORKERSxCORES"),
        ("--shapes=1x1", "WORKERSxCORES"),
        ("--shapes=2x4096", f"more than the {len(os.sched_getaffinity(0))} cores"),
        ("--models=cnn6m", "must be one of mlp"),
        ("--benchmarks=sgd,lamb", "must be of sgd, truth, adam"),
        ("--rounds=1", "rounds"),
        ("--budget_seconds=-1", "budget_seconds"),
    ],
)
def test_bad_flags_are_named(argument: str, message: str) -> None:
    with pytest.raises(flags.IllegalFlagValueError) as raised:
        copy.deepcopy(many_cores.FLAGS)([many_cores.__name__, argument])
    assert message in str(raised.value)
