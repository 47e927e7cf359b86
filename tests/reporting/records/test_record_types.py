"""Registry, JSON format and plugin data of records."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from tests.reporting.tensorboard import examples
from tf_libra import strategies
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.record_types import (
    RecordDocument,
    parse_kind,
    plugin_content,
    series_tag,
)

RECORD = examples.plan_record()
ALL = (
    RECORD,
    examples.step_record(RECORD),
    examples.pipeline_record(),
    examples.burst_record(),
    examples.background_record(),
)


@pytest.mark.parametrize("record", ALL, ids=lambda record: record.KIND)
def test_every_record_survives_json(record: record_types.Record) -> None:
    assert record_types.KINDS[record.KIND].from_json(record.to_json()) == record


def test_series_of_plans_differ_by_function_and_plan() -> None:
    other = examples.plan_record(strategy=strategies.Wfbp())
    assert RECORD.tag == f"train_step/plan/{RECORD.plan.fingerprint[:12]}"
    assert len({RECORD.tag, other.tag, *(record.tag for record in ALL)}) == 6


@pytest.mark.parametrize("record", ALL, ids=lambda record: record.KIND)
@pytest.mark.parametrize("damage", ["cut", "missing", "nan", "list", "empty"])
def test_damaged_text_is_a_value_error(record: record_types.Record, damage: str) -> None:
    text = record.to_json()
    document = json.loads(text)
    del document["function"]
    damaged = {
        "cut": text[: len(text) // 2],
        "missing": json.dumps(document),
        "nan": text.replace('"step": ', '"step": NaN, "old": ', 1),
        "list": f"[{text}]",
        "empty": "",
    }[damage]
    reported = "step must be a finite number, got NaN" if damage == "nan" else "record"
    with pytest.raises(ValueError, match=reported):
        record_types.KINDS[record.KIND].from_json(damaged)


@pytest.mark.parametrize("kind", [*record_types.KINDS, record_types.HISTORY_KIND])
def test_plugin_data_has_the_kind(kind: str) -> None:
    assert parse_kind(plugin_content(kind)) == kind


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "Unicode|codec"),
        (plugin_content("plan").replace(b'"version": 1', b'"version": 2'), "version .* must be 1"),
        (plugin_content("plan").replace(b'"plan"', b'"poem"'), "kind must be one of"),
    ],
)
def test_foreign_plugin_data_is_a_value_error(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_kind(content)


@dataclass(frozen=True)
class Example(RecordDocument):
    """Record of a single number."""

    KIND: ClassVar[str] = "example"
    first: int
    second: tuple[int, ...] = ()


@pytest.mark.parametrize("record", [Example(1), Example(2, (3, 4))])
def test_record_round_trips_with_the_format_of_its_kind(record: Example) -> None:
    assert json.loads(record.to_json())["format"] == "tf-libra example record"
    assert Example.from_json(record.to_json()) == record


def test_fields_with_defaults_may_be_missing() -> None:
    assert Example.from_json(changed(second="missing")) == Example(1)


def changed(**others: Any) -> str:
    document = Example(1).to_document() | others
    return json.dumps({key: value for key, value in document.items() if value != "missing"})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (changed(first="missing"), "tf-libra example record.*first"),
        (changed(third=3), "tf-libra example record.*third"),
        (changed(version=2), "version.*2"),
        (changed(format="tf-libra plan record"), "format.*tf-libra example record"),
        ("[]", "tf-libra example record"),
        ('{"first": ', "tf-libra example record"),
    ],
)
def test_malformed_text_is_an_error(document: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Example.from_json(document)


def test_series_tags_are_unique_by_function_kind_and_plan() -> None:
    tags = {
        series_tag(function, kind, fingerprint)
        for function in ("step", "other")
        for kind in ("plan", "step")
        for fingerprint in ("0" * 64, "1" * 64)
    }
    assert len(tags) == 8 and max(map(len, tags)) < 32
