"""Every step in real processes, with Gloo in place of NCCL."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import documents, runner
from benchmarks.gpu.__main__ import _options
from benchmarks.gpu.buckets import ddp_groups
from benchmarks.gpu.launch import HOST_IDS, MULTI_RANK
from tf_libra import ContentionModel, Plan

ROOT = Path(__file__).resolve().parents[3]
THREADS = (128, 512)
# Nothing here is to run into its deadline, however busy the machine.
BUDGET = "5400"


def dry_run(out: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", "--dry-run", "--out", str(out)]
    command += ["--budget", BUDGET, "--models", "vgg16", "--threads", "128,512", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dry") / "run"
    done = dry_run(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def results(out: Path, step: str) -> Any:
    document = documents.read(out / f"{step}.json")
    assert document["complete"] and document["dry_run"]
    return document["results"]


def test_every_step_ends_well_and_leaves_its_file(out: Path) -> None:
    report = json.loads((out / "run.json").read_text())
    assert report["problems"] == report["notes"] == []
    assert {name for name, step in report["steps"].items() if step["ended_well"]} == set(
        documents.STEPS
    )
    assert {path.stem for path in out.iterdir()} == {*documents.STEPS, "run"}


def test_requested_channels_reach_the_communicator(out: Path) -> None:
    found = results(out, "channels")
    assert found["proven"], found["reason"]
    assert {row["requested"] for row in found["rows"]} == {1, 4}
    assert found["tuner_counters"]["applied"] == len(found["rows"])
    assert found["written_by"] != "NCCL"


def test_curves_hold_every_kernel_size_and_number_of_threads(out: Path) -> None:
    found = results(out, "curves")
    assert set(found["kernels"]) == {"convolution", "matrix product", "normalisation"}
    for part in (found["alone"], *found["kernels"].values()):
        samples = documents.samples_from(part["samples"])
        keys = {(sample.num_bytes, sample.num_threads) for sample in samples}
        assert {threads for _, threads in keys} == set(THREADS)
        assert len(part["curve"]) == len(keys) == 4
    for kernel in found["kernels"].values():
        samples = documents.samples_from(kernel["samples"])
        assert all(sample.overlap_seconds > 0 for sample in samples)
    alone = documents.samples_from(found["alone"]["samples"])
    assert all(sample.overlap_seconds == sample.compute_seconds == 0 for sample in alone)


def test_measurements_load_as_input_of_planners(out: Path) -> None:
    with pytest.raises(ValueError, match="dry run"):
        documents.load(out)
    found = documents.load(out, dry_run=True)
    assert isinstance(found.cost, ContentionModel)
    assert set(found.kernel_costs) == set(results(out, "curves")["kernels"])
    assert set(found.model_costs) == set(found.profiles) == {"vgg16"}
    assert len(found.profiles["vgg16"].tensors) == 32


def test_training_compares_all_strategies_on_the_same_gradients(out: Path) -> None:
    model = results(out, "training")["models"]["vgg16"]
    names = {"none", "ddp", "syneasgd", "mg-wfbp", "libra-m", "libra", "libra-own"}
    under_policy = {"mg-wfbp-efficiency", "libra-own-efficiency"}
    names |= under_policy
    assert set(model["strategies"]) == names
    assert model["gradients"].keys() == names - {"none"}
    # Every way sums the same numbers, if not in the same order.
    assert max(model["gradients"].values()) < 1e-3
    for name, row in model["strategies"].items():
        assert len(row["rounds"]["backward_seconds"]) == model["rounds"]
        if name in under_policy:  # nothing was fitted to them
            assert row["predicted_seconds"] is None and row["cta_policy"] == "efficiency"
        else:
            assert row["predicted_seconds"] > 0 and row["cta_policy"] is None
    for samples in ("samples", "own_samples"):
        assert documents.samples_from(model[samples])


def test_ddp_is_predicted_with_the_buckets_that_it_makes(out: Path) -> None:
    model = results(out, "training")["models"]["vgg16"]
    sizes = [tensor["num_bytes"] for tensor in model["paired_profile"]["tensors"]]
    ours = [sum(sizes[group.start : group.stop]) for group in ddp_groups(sizes, 1)]
    assert [int(size) for size in model["ddp_buckets"].split(",")] == ours


def test_plans_use_the_threads_that_were_allowed(out: Path) -> None:
    plans = results(out, "training")["models"]["vgg16"]["plans"]
    for name in ("libra", "libra-m"):
        plan = Plan.from_json(json.dumps(plans[name]))
        assert {group.num_threads for group in plan.groups} <= set(THREADS)
    groups = [[(g["start"], g["stop"]) for g in plans[n]["groups"]] for n in ("libra", "libra-own")]
    assert groups[0] == groups[1]


def test_a_step_runs_alone_and_without_a_compiler_over_communicators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    done = dry_run(tmp_path / "run", "--steps", "channels")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the plugin could not be built" in done.stdout
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"channels.json", "run.json"}
    document = documents.read(tmp_path / "run" / "channels.json")
    assert document["settings"]["method"] == "communicators"
    # No plugin was called, so there is nothing to prove.
    assert document["complete"] and not document["results"]["proven"]


def test_rejected_placement_is_replaced_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = _options(["--out", str(tmp_path), "--dry-run", "--threads", "128,512"])
    notes: list[str] = []
    used: list[str] = []

    def run_step(self: runner.Bench, *_: Any) -> list[str]:
        used.append(self._placement)
        return ["channels, rank 0: status 1\nDuplicate GPU"] if len(used) == 1 else []

    monkeypatch.setattr(runner.Bench, "_run", run_step)
    monkeypatch.setattr(runner.Bench, "_check_channels", lambda self: [])
    bench = runner.Bench(options, tmp_path, "tuner", MULTI_RANK, "", {}, notes)
    assert bench.step("channels", 60.0) == []
    assert bench.step("curves", 60.0) == []
    assert used == [MULTI_RANK, HOST_IDS, HOST_IDS]
    assert len(notes) == 1 and notes[0].endswith("Duplicate GPU")
