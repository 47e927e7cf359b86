"""Values are written as JSON documents and read back unchanged."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_libra.internal import codec
from tf_libra.internal.values import Count, Natural, Value


@dataclass(frozen=True)
class Part(Value):
    start: Natural
    note: str = ""

    SPARSE: ClassVar = ("note",)


@dataclass(frozen=True)
class Table(codec.Document):
    parts: tuple[Part, ...]
    size: Count | None = None

    FORMAT: ClassVar = "test table"
    VERSION: ClassVar = 2


@dataclass(frozen=True)
class Schedule(codec.FingerprintedDocument):
    table: Table
    notes: tuple[str, ...] = ()

    FORMAT: ClassVar = "test schedule"

    def _executed(self) -> dict[str, Any]:
        return self.table.to_document()


TABLE = Table((Part(3), Part(5, "last")), 7)


def test_document_has_header_and_omits_sparse_defaults() -> None:
    assert TABLE.to_document() == {
        "format": "test table",
        "version": 2,
        "parts": [{"start": 3}, {"start": 5, "note": "last"}],
        "size": 7,
    }
    assert Table.from_json(TABLE.to_json()) == TABLE


def test_nested_document_has_its_header() -> None:
    schedule = Schedule(TABLE, ("a note",))
    document = json.loads(schedule.to_json())
    assert document["table"] == TABLE.to_document()
    assert document["fingerprint"] == schedule.fingerprint
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert Schedule(TABLE).fingerprint == schedule.fingerprint != Schedule(Table(())).fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "format must be 'test table', got 'other'"),
        ({"version": 1}, "version of test table must be 2, got 1"),
        ({"version": True}, "version of test table must be 2, got True"),
        ({"more": 1}, r"test table has unknown keys \['more'\]"),
        ({"parts": None}, "parts must be a list, got None"),
        ({"parts": [3]}, r"parts\[0\] must be an object, got 3"),
        ({"parts": [{"start": 1}, {}]}, r"parts\[1\] lacks the keys \['start'\]"),
        ({"parts": [{"start": -1}]}, r"parts\[0\]: start must be from 0 .*, got -1"),
        ({"size": 0}, "size must be from 1 .*, got 0"),
    ],
)
def test_wrong_field_of_a_document_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Table.from_json(json.dumps(TABLE.to_document() | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": "0"}, "fingerprint must be that of the plan's content, .*, got '0'"),
        ({"fingerprint": 0}, "fingerprint must be a string, got 0"),
        ({"fingerprint": None}, r"lacks the keys \['fingerprint'\]"),
        ({"table": [1]}, r"table must be an object, got \[1\]"),
        ({"table": {}}, "format must be 'test table', got None"),
    ],
)
def test_wrong_fingerprint_or_nested_document_is_named(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule.from_json(json.dumps(Schedule(TABLE).to_document() | change))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda value: st.lists(value, max_size=3) | st.dictionaries(st.text(), value, max_size=3),
    max_leaves=8,
)


@settings(max_examples=30)
@given(st.dictionaries(st.text(), json_values, max_size=4), st.randoms())
def test_equal_content_has_equal_digest(value: dict[str, Any], random: Any) -> None:
    names = list(value)
    random.shuffle(names)
    digest = codec.digest("kind", 1, value)
    assert codec.digest("kind", 1, {name: value[name] for name in names}) == digest
    assert codec.digest("kind", 2, value) != digest
    assert codec.digest("kind", 1, value | {"more": 1}) != digest or "more" in value
