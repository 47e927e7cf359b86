"""What records have in common as JSON documents, each with its format and version."""

import dataclasses
import json
from typing import Any

from tf_libra import checks
from tf_libra.records.kinds import VERSION, Readable

_TAG_DIGITS = 12


def format_of(kind: str) -> str:
    """What documents of this kind call themselves."""
    return f"tf-libra {kind} record"


def series_tag(function: str, kind: str, fingerprint: str) -> str:
    """The name of the series of summaries of one kind, of a function under a plan."""
    return f"{function}/{kind}/{fingerprint[:_TAG_DIGITS]}"


def written(kind: str, document: dict[str, Any]) -> str:
    """The document as text, with its format and version."""
    return json.dumps({"format": format_of(kind), "version": VERSION} | document)


def read(kind: type[Readable], document: str) -> dict[str, Any]:
    """The fields of a record as JSON has them; `ValueError` names what is wrong with the text."""
    required, optional = checks.field_names(kind)
    name = format_of(kind.KIND)
    value = checks.json_document(name, VERSION, document)
    return dict(checks.keys(name, value, required, optional))


def fields(record: Any) -> dict[str, Any]:
    """The fields of a record, by name."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def set_field(record: Any, field: str, value: Any) -> None:
    """Sets a field of a frozen record that is being made, to what a check has made of it."""
    object.__setattr__(record, field, value)
