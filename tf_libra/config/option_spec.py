"""Declaration of an option."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Check = Callable[[str, Any], Any]

DATA_PARALLELISM, PIPELINES, BURSTS = KINDS = ("data parallelism", "pipelines", "bursts")
"""What strategies make of a job: each has options of its own."""


@dataclass(frozen=True)
class Option:
    """One option that a user may pass.

    Attributes:
        name: by which it is given.
        default: where it is not given.
        kind: what may be given, as an annotation.
        doc: what it does.
        check: from its name and what was given to what it means; raises `ValueError`.
        agreed: whether all ranks have to ask for the same.
        group: of the options that it belongs to; empty for none.
        alone: the name by which an option of a group may be given without it.
        of: the kinds of strategies that have it.
    """

    name: str
    default: Any
    kind: str
    doc: str
    check: Check
    agreed: bool
    group: str = ""
    alone: str = ""
    of: tuple[str, ...] = (DATA_PARALLELISM,)

    @property
    def given_as(self) -> str:
        """The name by which it is given, without its group."""
        return self.alone or self.name


def option(
    default: Any,
    kind: str,
    check: Check,
    doc: str,
    *,
    agreed: bool = False,
    alone: str = "",
    of: tuple[str, ...] = (DATA_PARALLELISM,),
) -> Any:
    """A field of a dataclass of options; see `Option`."""
    doc = " ".join(doc.split())
    metadata = {
        "kind": kind, "check": check, "doc": doc, "agreed": agreed, "alone": alone, "of": of
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


def check_all(value: Any) -> None:
    """Replaces every field of a dataclass of options by what its option makes of it."""
    for field in dataclasses.fields(value):
        meaning = field.metadata["check"](field.name, getattr(value, field.name))
        object.__setattr__(value, field.name, meaning)
