"""Record types: their registry, JSON format, plugin data and series of summaries."""

import json
from typing import Any, ClassVar, Protocol, Self, TypeVar

from tf_libra.internal import validation
from tf_libra.internal.codec import Document
from tf_libra.internal.registry import Registry, load_systems

VERSION = 1
PLUGIN_NAME = "libra"
HISTORY_KIND = "history"
_SUMMARY = "tf-libra summary"
_TAG_DIGITS = 12

# Scalar series of a training function. Seconds per step: steady-state steps; first or traced steps
# of a plan; and for traced steps, backward (LIBRA, Eq. 7) and its exposed communication.
STEP_SECONDS = "step_seconds"
DISTURBED_STEP_SECONDS = "disturbed_step_seconds"
BACKWARD_SECONDS = "backward_seconds"
RESIDUAL_SECONDS = "residual_communication_seconds"
# Begin and end of a drift: the median of the steps, and the expected seconds.
DRIFTED_STEP_SECONDS = "drifted_step_seconds"
RETURNED_STEP_SECONDS = "returned_step_seconds"
EXPECTED_STEP_SECONDS = "expected_step_seconds"
# Written once, with the first step: the budget of steps before a plan is active.
MAX_TUNING_STEPS = "max_tuning_steps"
SCALAR_TAGS = (
    STEP_SECONDS,
    DISTURBED_STEP_SECONDS,
    BACKWARD_SECONDS,
    RESIDUAL_SECONDS,
    DRIFTED_STEP_SECONDS,
    RETURNED_STEP_SECONDS,
    EXPECTED_STEP_SECONDS,
)


class Readable(Protocol):
    """Frozen dataclass that is read from files."""

    KIND: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def from_json(cls, document: str) -> Self:
        """Reads a record from JSON text; a `ValueError` names the field that is wrong."""
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
        """Returns the record as JSON text, which `from_json` reads back unchanged."""
        ...


_Kind = TypeVar("_Kind", bound=type[Readable])
KINDS: Registry[type[Readable]] = Registry("kind", load_systems)


def register(kind: _Kind) -> _Kind:
    """Registers a record type under its `KIND`; a decorator."""
    KINDS.add(kind.KIND, kind)
    return kind


def plugin_content(kind: str) -> bytes:
    """Returns the plugin data of a summary of one of `KINDS`, or of `HISTORY_KIND`."""
    return json.dumps({"format": _SUMMARY, "version": VERSION, "kind": kind}).encode()


def parse_kind(content: bytes) -> str:
    """Reads the kind in the plugin data of a summary.

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


class RecordDocument(Document):
    """Frozen dataclass of a record, whose format is named by its `KIND`."""

    KIND: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "KIND" in vars(cls):
            cls.FORMAT = format_name(cls.KIND)


def format_name(kind: str) -> str:
    """Returns the format name in the documents of a kind."""
    return f"tf-libra {kind} record"


def series_tag(function: str, kind: str, fingerprint: str) -> str:
    """Returns the tag of a function's series of one kind under a plan."""
    return f"{function}/{kind}/{fingerprint[:_TAG_DIGITS]}"
