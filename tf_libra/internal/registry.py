"""Registries by name: planners and backends register themselves, so no module lists them."""

import types
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

_Member = TypeVar("_Member")
_Kind = TypeVar("_Kind", bound=type[Any])


class Registry(Generic[_Member]):
    """Frozen dataclasses by their `name`, in the order in which they were registered.

    Attributes:
      by_name: what is registered, read-only.
    """

    def __init__(
        self,
        described: str,
        field: str = "strategy",
        protocol: type[Any] = object,
        usual: Sequence[type[Any]] = (),
    ) -> None:
        """Begins empty.

        Args:
          described: what objects of it are, for messages.
          field: the argument by which users choose one, for messages.
          protocol: whose members they have to have.
          usual: classes that bring some of them to those who inherit one, for messages.
        """
        self._described = described
        self._field = field
        self._protocol = protocol
        self._usual = usual
        self._kinds: dict[str, type[_Member]] = {}
        self.by_name: Mapping[str, type[_Member]] = types.MappingProxyType(self._kinds)

    def register(self, kind: _Kind) -> _Kind:
        """A decorator: makes a kind known by its name, here and in every table.

        Raises:
          ValueError: it is no frozen dataclass with a name and defaults for all arguments, another
            has the name, or it lacks what the protocol says.
        """
        name = getattr(kind, "name", None)
        if not isinstance(name, str) or not name:
            raise ValueError(f"{self._field}: name must be a text that is not empty, got {name!r}")
        if not getattr(getattr(kind, "__dataclass_params__", None), "frozen", False):
            raise ValueError(f"{self._field} {name!r} must be a frozen dataclass, got {kind!r}")
        known = self._kinds.get(name, kind)
        if known is not kind:
            raise ValueError(f"{self._field}: name must be new, got {name!r}, which {known!r} has")
        try:
            kind()
        except TypeError as error:
            raise ValueError(
                f"{self._field} {name!r} must have a default for every argument: {error}"
            ) from None
        missing = lacking(kind, self._protocol)
        if missing:
            raise ValueError(
                f"{self._field} {name!r} must have {', '.join(missing)}:"
                f" {_dotted(self._protocol)} says what they are{self._who_brings(missing)}"
            )
        self._kinds[name] = kind
        return kind

    def _who_brings(self, missing: list[str]) -> str:
        found = [
            _dotted(one) for one in self._usual if set(missing) - set(lacking(one, self._protocol))
        ]
        return f"; inherit {' or '.join(found)} to have what is usual" if found else ""

    def forget(self, name: str) -> None:
        """Makes one unknown again; `ValueError` where none has the name."""
        if self._kinds.pop(name, None) is None:
            raise self._unknown(name)

    def find(self, member: Any) -> _Member | None:
        """The object itself, or the one of that name with its default arguments; else None."""
        if isinstance(member, str):
            return self._kinds[member]() if member in self._kinds else None
        return member if type(member) in self._kinds.values() else None

    def resolve(self, member: _Member | str) -> _Member:
        """As `find`.

        Raises:
          ValueError: none has this name.
        """
        found = self.find(member)
        if found is not None:
            return found
        if isinstance(member, str):
            raise self._unknown(member)
        raise ValueError(
            f"{self._field} must be a name or an object of {self._described}, got {member!r}"
        )

    def _unknown(self, name: str) -> ValueError:
        return ValueError(f"{self._field} must be one of {', '.join(self._kinds)}, got {name!r}")


def _dotted(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def lacking(kind: type[Any], protocol: type[Any]) -> list[str]:
    """The members of a protocol that a dataclass lacks, in the order in which they are declared."""
    declared = [vars(one) for one in reversed(protocol.__mro__)]
    members = [name for one in declared for name in (*one.get("__annotations__", ()), *one)]
    return [
        name
        for name in dict.fromkeys(members)
        if not name.startswith("_")
        and not hasattr(kind, name)
        and name not in kind.__dataclass_fields__
    ]
