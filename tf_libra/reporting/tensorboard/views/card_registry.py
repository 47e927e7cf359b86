"""Registry of cards: views that do not depend on the selected plan."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tf_libra.internal.registry import Registry, load_systems
from tf_libra.reporting.records.record_types import Record

_Record = TypeVar("_Record", bound=Record)
_View = Callable[[_Record], dict[str, Any]]


@dataclass(frozen=True)
class Card:
    """View of one record type.

    Attributes:
      name: key in the listing of runs.
      view: returns the view of a record's text; an unreadable text is a `ValueError`.
    """

    name: str
    view: Callable[[str], dict[str, Any]]


# By kind of record.
CARDS: Registry[Card] = Registry("card", load_systems)


def register(name: str, kind: type[_Record]) -> Callable[[_View[_Record]], _View[_Record]]:
    """Registers a function as the card of a record type; a decorator."""

    def known(view: _View[_Record]) -> _View[_Record]:
        CARDS.add(kind.KIND, Card(name, lambda document: view(kind.from_json(document))))
        return view

    return known
