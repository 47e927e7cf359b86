"""What stands in a card of its own, whatever plan is shown: each kind of it registers itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from tf_libra.records.kinds import Record

_Record = TypeVar("_Record", bound=Record)
_View = Callable[[_Record], dict[str, Any]]


@dataclass(frozen=True)
class Card:
    """A kind of record that is drawn as it is.

    Attributes:
      name: under which the list of runs has them.
      of: what is shown of one, by its text; `ValueError` where that cannot be read.
    """

    name: str
    of: Callable[[str], dict[str, Any]]


_cards: dict[str, Card] = {}
# By the kind of record; complete as soon as the package is imported.
CARDS: Mapping[str, Card] = MappingProxyType(_cards)


def register(name: str, kind: type[_Record]) -> Callable[[_View[_Record]], _View[_Record]]:
    """A decorator: what the function says of a record of this kind stands in a card."""

    def known(view: _View[_Record]) -> _View[_Record]:
        _cards[kind.KIND] = Card(name, lambda document: view(kind.from_json(document)))
        return view

    return known
