"""Files of `cache_dir`: cached plans and warm starts."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tf_libra import strategies
from tf_libra.autotune import TensorSpec, TuningResult
from tf_libra.autotune.warm_start import JobSignature, LayerSignature, PlanOutline, WarmStart
from tf_libra.cost_model import ContentionModel, OverlapSample
from tf_libra.planning.data_parallel.aiacc import CommConfig
from tf_libra.reporting.records import plan_store
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

TENSORS = (TensorSpec("b", 20, "float32"), TensorSpec("w", 180, "float32"))
VERSIONS = {"tensorflow": "2.21.0", "tf_libra": "0.1.0"}


@pytest.fixture
def conclusion(three_groups: Plan) -> TuningResult:
    return TuningResult(
        three_groups,
        BackwardProfile.from_arrays([20, 180], [1e-3, 2e-3], ["b", "w"]),
        ContentionModel(
            num_workers=2,
            hop_latency=1e-4,
            compute=(1.0, 0.05),
            overlapped=(1e9, 5e8, 0.5),
            exclusive=(2e9, 5e8, 0.5),
        ),
        held_out_error=0.11,
        samples=(OverlapSample(200, 2, 0.0, 0.0, 1e-3, 7, 1, "p"),),
        notes=("what a reader should know",),
        is_complete=True,
    )


def test_stored_plan_is_loaded(tmp_path: Path, conclusion: TuningResult) -> None:
    path = plan_store.store_plan(tmp_path / "new" / "folder", "k" * 64, conclusion)
    assert plan_store.load_plan(tmp_path / "new" / "folder", "k" * 64) == conclusion
    assert list(path.parent.iterdir()) == [path]


def test_later_replaces_earlier(tmp_path: Path, conclusion: TuningResult) -> None:
    plan_store.store_plan(tmp_path, "key", conclusion)
    without_model = replace(conclusion, profile=None, cost_model=None)
    plan_store.store_plan(tmp_path, "key", without_model)
    assert plan_store.load_plan(tmp_path, "key") == without_model


def test_other_keys_have_no_plan(tmp_path: Path, conclusion: TuningResult) -> None:
    plan_store.store_plan(tmp_path, "key", conclusion)
    assert plan_store.load_plan(tmp_path, "other") is None
    assert plan_store.load_plan(tmp_path / "nowhere", "key") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"plan": 3}',
        b'{"plan": "{}"}',
        b'{"format": "tf-libra conclusion", "version": 1}',
        b'{"format": "tf-libra conclusion", "version": 2}',
        b'{"format": "tf-libra plan", "version": 1}',
        b"\xff\xfe",
        b"[" * 10**5,
    ],
)
def test_malformed_file_is_a_value_error(
    tmp_path: Path, conclusion: TuningResult, content: bytes
) -> None:
    plan_store.store_plan(tmp_path, "key", conclusion).write_bytes(content)
    with pytest.raises(ValueError):
        plan_store.load_plan(tmp_path, "key")


def test_huge_file_is_not_read(tmp_path: Path, conclusion: TuningResult) -> None:
    with plan_store.store_plan(tmp_path, "key", conclusion).open("r+b") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(ValueError, match="1099511627776"):
        plan_store.load_plan(tmp_path, "key")


@pytest.mark.parametrize("field", ["plan", "profile", "cost_model", "samples"])
@pytest.mark.parametrize("value", [3, [3], {}, "{}", "null"])
def test_malformed_part_is_a_value_error(
    tmp_path: Path, conclusion: TuningResult, field: str, value: object
) -> None:
    path = plan_store.store_plan(tmp_path, "key", conclusion)
    path.write_text(json.dumps(json.loads(conclusion.to_json()) | {field: value}))
    with pytest.raises(ValueError):
        plan_store.load_plan(tmp_path, "key")


def test_fingerprint_depends_on_every_input() -> None:
    libra = strategies.Libra()
    keys = {
        plan_store.fingerprint(tensors, strategy, workers, versions)
        for tensors, strategy, workers, versions in (
            (TENSORS, libra, 2, VERSIONS),
            (TENSORS[::-1], libra, 2, VERSIONS),
            ((replace(TENSORS[0], dtype="float64"), TENSORS[1]), libra, 2, VERSIONS),
            ((replace(TENSORS[0], num_bytes=24), TENSORS[1]), libra, 2, VERSIONS),
            (TENSORS, strategies.Libra(threads=(1, 2)), 2, VERSIONS),
            (TENSORS, strategies.Wfbp(), 2, VERSIONS),
            (TENSORS, libra, 3, VERSIONS),
            (TENSORS, libra, 2, VERSIONS | {"tensorflow": "2.18.1"}),
        )
    }
    assert len(keys) == 8
    again = plan_store.fingerprint(TENSORS, strategies.Libra(), 2, dict(reversed(VERSIONS.items())))
    assert again in keys


JOB = JobSignature((LayerSignature(8, "float32"), LayerSignature(80, "float16")), 4, 2)
START = WarmStart(JOB, "aiacc", PlanOutline((0.5, 1.0), (1, 2), (0, 1)), (CommConfig(2**20, 2, 1),))


def test_warm_starts_are_loaded_latest_first(tmp_path: Path) -> None:
    other = WarmStart(JOB, "libra", START.outline)
    for index, start in enumerate((START, other)):
        os.utime(plan_store.store_warm_start(tmp_path, start), (index, index))
    assert plan_store.load_warm_starts(tmp_path) == ([other, START], [])


def test_same_job_replaces_its_warm_start(tmp_path: Path) -> None:
    plan_store.store_warm_start(tmp_path, START)
    newer = WarmStart(
        JOB, "aiacc", START.outline, (CommConfig(2**18, 1, 1), CommConfig(2**20, 2, 1))
    )
    plan_store.store_warm_start(tmp_path, newer)
    assert plan_store.load_warm_starts(tmp_path) == ([newer], [])


def test_networks_have_separate_warm_starts(tmp_path: Path) -> None:
    """Measured rates of one network vary."""

    def at(rate: float, units: int) -> WarmStart:
        job = replace(JOB, bytes_per_second=rate)
        return WarmStart(job, "aiacc", START.outline, (CommConfig(units, 2, 1),))

    starts = [at(1.1e8, 1), at(1.2e8, 2), at(3e9, 3)]
    for index, start in enumerate((START, *starts)):
        os.utime(plan_store.store_warm_start(tmp_path, start), (index, index))
    assert plan_store.load_warm_starts(tmp_path) == ([starts[2], starts[1], START], [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value["job"].update(bytes_per_second=-1.0), "bytes_per_second must be"),
        (lambda value: value["job"].update(num_workers=0), "num_workers must be"),
        (lambda value: value["outline"].update(stops=[2.0, 1.0]), "stops must"),
        (lambda value: value["settings"][0].update(unit_bytes="much"), "unit_bytes must"),
        (lambda value: value.pop("job"), "job"),
        (lambda value: value.update(version=99), "version"),
    ],
)
def test_malformed_warm_start_is_reported_and_skipped(tmp_path: Path, change, message: str) -> None:
    path = plan_store.store_warm_start(tmp_path, START)
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    other = WarmStart(JOB, "libra", START.outline)
    plan_store.store_warm_start(tmp_path, other)
    found, problems = plan_store.load_warm_starts(tmp_path)
    assert found == [other]
    assert len(problems) == 1 and path.name in problems[0] and message in problems[0]


def test_warm_start_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    path = plan_store.store_warm_start(tmp_path, START)
    value = json.loads(path.read_text())
    value["setting"] = value.pop("settings")[0]
    assert "bytes_per_second" not in value["job"]
    path.write_text(json.dumps(value))
    assert plan_store.load_warm_starts(tmp_path) == ([START], [])


def test_truncated_warm_start_is_reported(tmp_path: Path) -> None:
    path = plan_store.store_warm_start(tmp_path, START)
    path.write_text('{"format": "tf-libra sta')
    found, [problem] = plan_store.load_warm_starts(tmp_path)
    assert found == [] and path.name in problem


def test_missing_folder_has_no_warm_starts(tmp_path: Path) -> None:
    assert plan_store.load_warm_starts(tmp_path / "none") == ([], [])
