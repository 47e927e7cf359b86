"""The common format of all records as documents."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pytest

from tf_libra.reporting.records.json_codec import fields, read, series_tag, set_field, written


@dataclass(frozen=True)
class Example:
    """A record of no use."""

    KIND: ClassVar[str] = "example"
    first: int
    second: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        set_field(self, "second", tuple(self.second))

    @classmethod
    def from_json(cls, document: str) -> Self:
        return cls(**read(cls, document))


@pytest.mark.parametrize("record", [Example(1), Example(2, (3, 4))])
def test_reads_what_was_written(record: Example) -> None:
    assert Example.from_json(written(record.KIND, fields(record))) == record


def test_what_has_a_default_may_be_missing() -> None:
    assert Example.from_json(written("example", {"first": 1})) == Example(1)


def changed(**others: Any) -> str:
    document = json.loads(written("example", {"first": 1})) | others
    return json.dumps({key: value for key, value in document.items() if value != "missing"})


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (changed(first="missing"), "tf-libra example record.*first"),
        (changed(third=3), "tf-libra example record.*third"),
        (changed(version=2), "version.*2"),
        (changed(format="tf-libra plan record"), "format.*tf-libra example record"),
        ("[]", "tf-libra example record"),
        ('{"first": ', "tf-libra example record"),
    ],
)
def test_what_is_wrong_with_a_text_is_named(document: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Example.from_json(document)


def test_series_are_told_apart_by_function_kind_and_plan() -> None:
    tags = {
        series_tag(function, kind, fingerprint)
        for function in ("step", "other")
        for kind in ("plan", "step")
        for fingerprint in ("0" * 64, "1" * 64)
    }
    assert len(tags) == 8 and max(map(len, tags)) < 32
