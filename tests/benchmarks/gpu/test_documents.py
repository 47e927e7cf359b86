import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import documents
from tf_libra import BackwardProfile, ContentionModel, OverlapSample

COST = ContentionModel(2, 5e-5, (1.0, 1e-4), (4e9, 3e9, 0.01), (6e9, 5e9, 0.01))
PROFILE = BackwardProfile.from_arrays([4, 8], [1e-3, 2e-3], ["a", "b"], ["float32"] * 2)
MEASURED_ON = dict.fromkeys(documents.MEASURED_ON, "given")


def document(step: str, results: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
    return {
        "format": documents.FORMAT,
        "version": documents.VERSION,
        "step": step,
        "dry_run": dry_run,
        "complete": True,
        "started": "2026-01-01T00:00:00+00:00",
        "environment": {} if dry_run else MEASURED_ON,
        "settings": {},
        "notes": [],
        "results": results,
    }


def fill(folder: Path, *, dry_run: bool) -> None:
    cost = documents.as_value(COST)
    contents = {
        "curves": {"cost_model": cost, "kernels": {"mm": {"cost_model": cost}, "x": {}}},
        "profiles": {"models": {"vgg16": {"profile": documents.as_value(PROFILE)}}},
        "training": {"models": {"vgg16": {"cost_model": cost}, "xception": {"batch_size": 1}}},
    }
    for step, results in contents.items():
        documents.write(folder / f"{step}.json", document(step, results, dry_run=dry_run))


def test_results_come_back_in_the_planners_types(tmp_path: Path) -> None:
    fill(tmp_path, dry_run=False)
    found = documents.load(tmp_path)
    assert found.cost == COST
    assert found.kernel_costs == {"mm": COST}
    assert found.model_costs == {"vgg16": COST}
    assert found.profiles == {"vgg16": PROFILE}
    assert found.environment == MEASURED_ON


def test_a_run_cut_short_gives_what_it_had(tmp_path: Path) -> None:
    documents.write(tmp_path / "curves.json", document("curves", {"rounds": 0}))
    found = documents.load(tmp_path)
    assert found.cost is None and found.kernel_costs == found.profiles == {}


def test_a_dry_run_is_no_measurement(tmp_path: Path) -> None:
    fill(tmp_path, dry_run=True)
    with pytest.raises(ValueError, match=r"curves\.json.*GPU"):
        documents.load(tmp_path)
    assert documents.load(tmp_path, dry_run=True).cost == COST


def test_an_empty_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no results"):
        documents.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "format must be"),
        ({"version": 2}, "format must be"),
        ({"version": True}, "version must be int"),
        ({"step": "curve"}, "step must be one of"),
        ({"results": []}, "results must be dict"),
        ({"extra": 1}, "extra is unknown"),
        ({"environment": {**MEASURED_ON, "driver": ""}}, "environment.driver is missing"),
        ({"environment": {}}, "environment.device is missing"),
    ],
)
def test_invalid_field_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "curves.json"
    wrong = {**document("curves", {}), **change}
    with pytest.raises(ValueError, match=message):
        documents.write(path, wrong)
    assert list(tmp_path.iterdir()) == []
    path.write_text(json.dumps(wrong))
    with pytest.raises(ValueError, match=rf"curves\.json: {message}"):
        documents.read(path)


@pytest.mark.parametrize("key", documents.MEASURED_ON)
def test_no_result_without_what_it_was_measured_on(key: str) -> None:
    written = document("curves", {})
    del (environment := dict(MEASURED_ON))[key]
    with pytest.raises(ValueError, match=f"environment.{key} is missing"):
        documents.check({**written, "environment": environment})


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_invalid_document_is_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "curves.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"curves\.json: "):
        documents.read(path)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "curves.json"
    for rounds in (1, 2):
        documents.write(path, document("curves", {"rounds": rounds}))
        assert documents.read(path)["results"] == {"rounds": rounds}
    assert [file.name for file in tmp_path.iterdir()] == ["curves.json"]


def test_samples_come_back_unchanged() -> None:
    samples = (OverlapSample(8, 128, 1.0, 2.0, 0.5, 3, 1, "p"), OverlapSample(8, 256, 0, 0, 1))
    assert documents.samples_from([documents.sample_value(sample) for sample in samples]) == samples
    with pytest.raises(ValueError, match="samples: "):
        documents.samples_from([{"bytes": 8}])


def committed() -> list[Path]:
    folder = Path(documents.__file__).parent / "results"
    return sorted(folder.glob("*/*.json"))


def test_committed_results_were_measured_on_a_gpu() -> None:
    for path in committed():
        if path.stem in documents.STEPS:
            assert not documents.read(path)["dry_run"], path
