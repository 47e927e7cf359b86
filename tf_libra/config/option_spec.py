"""Declaration of an option."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Check = Callable[[str, Any], Any]


@dataclass(frozen=True)
class Option:
    """One option that a user may pass.

    Attributes:
        name: field of its dataclass.
        default: value if the user gives none.
        kind: accepted types, as an annotation.
        doc: description for docstrings and docs/options.md.
        check: returns the meaning of a given value; raises `ValueError` with the given name.
        agreed: True if all ranks must give the same value.
        group: name of its group, such as "tuning"; empty for none.
        flat_name: keyword argument of an option in a group; empty for others.
    """

    name: str
    default: Any
    kind: str
    doc: str
    check: Check
    agreed: bool
    group: str = ""
    flat_name: str = ""

    @property
    def keyword(self) -> str:
        """Keyword argument of `optimize`."""
        return self.flat_name or self.name


def option(
    default: Any,
    kind: str,
    check: Check,
    doc: str,
    *,
    agreed: bool = False,
    flat_name: str = "",
) -> Any:
    """Returns a field of an options dataclass; see `Option`."""
    doc = " ".join(doc.split())
    metadata = {
        "kind": kind, "check": check, "doc": doc, "agreed": agreed, "flat_name": flat_name
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


def check_all(value: Any) -> None:
    """Replaces every field of an options dataclass by its checked value."""
    for field in dataclasses.fields(value):
        meaning = field.metadata["check"](field.name, getattr(value, field.name))
        object.__setattr__(value, field.name, meaning)
