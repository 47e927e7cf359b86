"""Registry of record types, and the plugin data of their summaries."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self, TypeVar

from tf_libra.internal import validation

VERSION = 1
PLUGIN_NAME = "libra"
HISTORY_KIND = "history"
_SUMMARY = "tf-libra summary"


class Readable(Protocol):
    """Frozen dataclass that is read from files."""

    KIND: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def from_json(cls, document: str) -> Self:
        """Read a record from JSON text; a `ValueError` names the field that is wrong."""
        ...


class Record(Readable, Protocol):
    """Readable value that is written as well."""

    @property
    def step(self) -> int:
        """Step of the record."""
        ...

    @property
    def tag(self) -> str:
        """Tag of the record's series of summaries."""
        ...

    def to_json(self) -> str:
        """Return the record as JSON text, which `from_json` reads back unchanged."""
        ...


_Kind = TypeVar("_Kind", bound=type[Readable])
_kinds: dict[str, type[Readable]] = {}
# By kind; complete once the package is imported.
KINDS: Mapping[str, type[Readable]] = MappingProxyType(_kinds)


def register(kind: _Kind) -> _Kind:
    """Register a record type under its `KIND`; a decorator."""
    _kinds[kind.KIND] = kind
    return kind


def plugin_content(kind: str) -> bytes:
    """Return the plugin data of a summary of one of `KINDS`, or of `HISTORY_KIND`."""
    return json.dumps({"format": _SUMMARY, "version": VERSION, "kind": kind}).encode()


def kind_of(content: bytes) -> str:
    """Read the kind in the plugin data of a summary.

    Raises:
      ValueError: malformed, another version, or an unknown kind.
    """
    value = validation.keys(
        _SUMMARY, validation.json_document(_SUMMARY, VERSION, content.decode("utf-8")), ("kind",)
    )
    kinds = (*KINDS, HISTORY_KIND)
    if value["kind"] not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}, got {value['kind']!r:.80}")
    return str(value["kind"])
