"""Records of activated plans as JSON, and versions of the job."""

import json
import platform
from importlib import metadata

import pytest

from tests.reporting.tensorboard import examples
from tf_libra import strategies
from tf_libra.autotune import TuningResult
from tf_libra.reporting.records import plan
from tf_libra.reporting.records.plan import PlanRecord

RECORD = examples.plan_record()


@pytest.mark.parametrize("kind", strategies.BY_NAME.values(), ids=lambda kind: kind.name)
def test_every_strategy_survives_json(kind: type[strategies.Strategy]) -> None:
    record = examples.plan_record(strategy=kind())
    assert PlanRecord.from_json(record.to_json()) == record


def test_plan_without_profile_and_model_survives_json() -> None:
    record = PlanRecord("f", 1, "given", RECORD.strategy, (1, 2), TuningResult(RECORD.plan))
    assert PlanRecord.from_json(record.to_json()) == record


def test_stored_median_error_of_earlier_versions_is_recomputed() -> None:
    document = json.loads(RECORD.to_json())
    assert "median_error" not in document
    assert PlanRecord.from_json(json.dumps(document | {"median_error": 0.9})) == RECORD


def test_baseline_steps_of_earlier_versions_are_ignored() -> None:
    document = json.loads(RECORD.to_json())
    assert "baseline_seconds" not in document
    text = json.dumps(document | {"baseline_seconds": [0.061, 0.063]})
    assert PlanRecord.from_json(text) == RECORD


@pytest.mark.parametrize("name", examples.HOSTILE, ids=range(len(examples.HOSTILE)))
def test_names_survive_json(name: str) -> None:
    record = examples.plan_record(function=name, names=(name,))
    again = PlanRecord.from_json(record.to_json())
    assert (again.function, again.plan.tensor_names[0]) == (name, name)
    assert again.tag.startswith(f"{name}/plan/")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": 0}, "step must be from 1"),
        ({"step": None}, "step must be an integer"),
        ({"origin": "found"}, "origin must be one of made, kept, given"),
        ({"function": 3}, "function must be a string"),
        ({"threads": []}, "threads must hold at least one"),
        ({"threads": [0]}, "threads must be from 1"),
        ({"plan": {}}, "format must be 'tf-libra plan'"),
        ({"profile": 3}, "profile"),
        ({"strategy": {"name": "other"}}, "strategy: name must be one of"),
        ({"strategy": {"name": "libra", "depth": 3}}, "strategy has unknown keys"),
        ({"strategy": {"name": "libra", "max_groups": 0}}, "strategy: max_groups"),
        ({"samples": [{}]}, r"samples\[0\] lacks the keys"),
        ({"samples": [3]}, r"samples\[0\] must be an object"),
        ({"notes": "text"}, "notes must be a list"),
        ({"extra": 1}, "unknown keys"),
        ({"version": 2}, "version of tf-libra plan record must be 1, got 2"),
        ({"format": "tf-libra step record"}, "format must be 'tf-libra plan record'"),
    ],
)
def test_malformed_field_of_a_plan_record_is_an_error(changes: dict, message: str) -> None:
    document = json.loads(RECORD.to_json()) | changes
    with pytest.raises(ValueError, match=message):
        PlanRecord.from_json(json.dumps(document))


def test_versions_name_every_package_once() -> None:
    found = plan.versions()
    assert f"Python {platform.python_version()}" in found
    assert f"Horovod {metadata.version('horovod')}" in found
    assert len({version.split()[0] for version in found}) == len(found)
    assert any(version.startswith("TensorFlow 2.") for version in found)


def test_versions_skip_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = (("no-such-package", "Nothing"), ("numpy", "Numbers"), ("pytest", "Numbers"))
    monkeypatch.setattr(plan, "_PACKAGES", packages)
    assert plan.versions()[1:] == (f"Numbers {metadata.version('numpy')}",)
