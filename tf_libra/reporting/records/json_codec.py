"""JSON codec of records, with format and version."""

import dataclasses
import json
from typing import Any

from tf_libra.internal import validation
from tf_libra.reporting.records.record_types import VERSION, Readable

_TAG_DIGITS = 12


def format_of(kind: str) -> str:
    """Return the format name of a kind of document."""
    return f"tf-libra {kind} record"


def series_tag(function: str, kind: str, fingerprint: str) -> str:
    """Return the tag of a function's series of one kind under a plan."""
    return f"{function}/{kind}/{fingerprint[:_TAG_DIGITS]}"


def written(kind: str, document: dict[str, Any]) -> str:
    """Return a document as text, with its format and version."""
    return json.dumps({"format": format_of(kind), "version": VERSION} | document)


def read(kind: type[Readable], document: str) -> dict[str, Any]:
    """Parse the fields of a record from JSON; a `ValueError` names what is wrong."""
    required, optional = validation.field_names(kind)
    name = format_of(kind.KIND)
    value = validation.json_document(name, VERSION, document)
    return dict(validation.keys(name, value, required, optional))


def fields(record: Any) -> dict[str, Any]:
    """Return the fields of a record, by name."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def set_field(record: Any, field: str, value: Any) -> None:
    """Set a validated field of a frozen record in its constructor."""
    object.__setattr__(record, field, value)
