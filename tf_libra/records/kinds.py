"""Which kinds of records there are, and what a summary says of the one that it holds."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self, TypeVar

from tf_libra import checks

VERSION = 1
PLUGIN_NAME = "libra"
HISTORY_KIND = "history"
_SUMMARY = "tf-libra summary"


class Readable(Protocol):
    """A frozen dataclass that is read from files."""

    KIND: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def from_json(cls, document: str) -> Self:
        """Reads a record from JSON text; `ValueError` names what is wrong with it."""
        ...


class Record(Readable, Protocol):
    """One that is written as well."""

    @property
    def step(self) -> int:
        """The step that it is of."""
        ...

    @property
    def tag(self) -> str:
        """The name of the series of summaries that the record belongs to."""
        ...

    def to_json(self) -> str:
        """Returns the record as JSON text; `from_json` reads it back unchanged."""
        ...


_Kind = TypeVar("_Kind", bound=type[Readable])
_kinds: dict[str, type[Readable]] = {}
# By what a summary says; complete as soon as the package is imported.
KINDS: Mapping[str, type[Readable]] = MappingProxyType(_kinds)


def register(kind: _Kind) -> _Kind:
    """A decorator: makes a kind of record known by its `KIND`."""
    _kinds[kind.KIND] = kind
    return kind


def plugin_content(kind: str) -> bytes:
    """What the plugin data of a summary says of it: one of `KINDS`, or `HISTORY_KIND`."""
    return json.dumps({"format": _SUMMARY, "version": VERSION, "kind": kind}).encode()


def kind_of(content: bytes) -> str:
    """Reads what `plugin_content` wrote.

    Raises:
      ValueError: malformed, of another version, or of an unknown kind.
    """
    value = checks.keys(
        _SUMMARY, checks.json_document(_SUMMARY, VERSION, content.decode("utf-8")), ("kind",)
    )
    kinds = (*KINDS, HISTORY_KIND)
    if value["kind"] not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}, got {value['kind']!r:.80}")
    return str(value["kind"])
