"""The plans that are cached between jobs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tf_libra import strategies
from tf_libra.autotune import TensorSpec, TuningResult
from tf_libra.cost_model import ContentionModel, OverlapSample
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


def test_what_was_stored_is_loaded(tmp_path: Path, conclusion: TuningResult) -> None:
    path = plan_store.store(tmp_path / "new" / "folder", "k" * 64, conclusion)
    assert plan_store.load(tmp_path / "new" / "folder", "k" * 64) == conclusion
    assert list(path.parent.iterdir()) == [path]


def test_later_replaces_earlier(tmp_path: Path, conclusion: TuningResult) -> None:
    plan_store.store(tmp_path, "key", conclusion)
    without_model = replace(conclusion, profile=None, cost_model=None)
    plan_store.store(tmp_path, "key", without_model)
    assert plan_store.load(tmp_path, "key") == without_model


def test_nothing_is_kept_under_another_key(tmp_path: Path, conclusion: TuningResult) -> None:
    plan_store.store(tmp_path, "key", conclusion)
    assert plan_store.load(tmp_path, "other") is None
    assert plan_store.load(tmp_path / "nowhere", "key") is None


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
    plan_store.store(tmp_path, "key", conclusion).write_bytes(content)
    with pytest.raises(ValueError):
        plan_store.load(tmp_path, "key")


def test_huge_file_is_not_read(tmp_path: Path, conclusion: TuningResult) -> None:
    with plan_store.store(tmp_path, "key", conclusion).open("r+b") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(ValueError, match="has 1099511627776 bytes"):
        plan_store.load(tmp_path, "key")


@pytest.mark.parametrize("field", ["plan", "profile", "cost_model", "samples"])
@pytest.mark.parametrize("value", [3, [3], {}, "{}", "null"])
def test_malformed_part_is_a_value_error(
    tmp_path: Path, conclusion: TuningResult, field: str, value: object
) -> None:
    path = plan_store.store(tmp_path, "key", conclusion)
    path.write_text(json.dumps(json.loads(conclusion.to_json()) | {field: value}))
    with pytest.raises(ValueError):
        plan_store.load(tmp_path, "key")


def test_fingerprint_tells_apart_what_must_be_measured_anew() -> None:
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
