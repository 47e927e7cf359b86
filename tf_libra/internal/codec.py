"""JSON documents of values: format, version and fingerprint."""

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from tf_libra.internal import validation
from tf_libra.internal.values import Value


class Document(Value):
    """Value that is stored as JSON text: a header and the fields.

    Attributes:
      FORMAT: name of the format, in the header; also names the document in errors.
      VERSION: version of the format, in the header.
      INDENT: indentation of the text; None: one line.
    """

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int] = 1
    INDENT: ClassVar[int | None] = None

    def to_document(self) -> dict[str, Any]:
        """Returns the header and the fields as JSON values."""
        return {"format": self.FORMAT, "version": self.VERSION} | self._to_fields()

    def to_json(self) -> str:
        """Returns JSON text, which `from_json` reads back unchanged."""
        return json.dumps(self.to_document(), indent=self.INDENT)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        """Reads what `to_document` returned; a `ValueError` names the field that is wrong."""
        content = validation.without_header(cls.FORMAT, cls.VERSION, document)
        return cls.from_fields(cls.FORMAT, content)

    @classmethod
    def from_json(cls, document: str) -> Self:
        """Reads JSON text.

        Raises:
          ValueError: malformed, too large, another format or version, a field out of its range, or
            a fingerprint that does not match the content.
        """
        return cls.from_document(validation.json_object(cls.FORMAT, document))

    @classmethod
    def parse(cls, name: str, value: Any) -> Self:
        """Reads a document in a field of another one."""
        return cls.from_document(validation.mapping(name, value))


class FingerprintedDocument(Document):
    """Document of a plan: its header has the fingerprint of what is executed."""

    def _executed(self) -> dict[str, Any]:
        """Returns the content that the fingerprint covers."""
        raise NotImplementedError

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hexadecimal SHA-256 of the executed content; predictions and notes are excluded."""
        return digest(self.FORMAT, self.VERSION, self._executed())

    def to_document(self) -> dict[str, Any]:
        """Returns the header with the fingerprint, and the fields, as JSON values."""
        header = {"format": self.FORMAT, "version": self.VERSION, "fingerprint": self.fingerprint}
        return header | self._to_fields()

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        """Reads what `to_document` returned; a `ValueError` names the field that is wrong."""
        content = validation.without_header(cls.FORMAT, cls.VERSION, document)
        fingerprint = content.pop("fingerprint", None)
        if fingerprint is None:
            raise ValueError(f"{cls.FORMAT} lacks the keys ['fingerprint']")
        value = cls.from_fields(cls.FORMAT, content)
        if validation.text("fingerprint", fingerprint) != value.fingerprint:
            raise ValueError(
                f"fingerprint must be that of the plan's content, {value.fingerprint}, got"
                f" {validation.shortened(fingerprint)}"
            )
        return value


def digest(kind: str, version: int, content: Mapping[str, Any]) -> str:
    """Returns the hexadecimal SHA-256 of JSON values, independent of the order of keys."""
    value = {"format": kind, "version": version} | dict(content)
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
