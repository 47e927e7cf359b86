"""Registries: entries by name. A module registers what it adds, so no other module lists it."""

import types
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

_Entry = TypeVar("_Entry")
_Member = TypeVar("_Member")
_Kind = TypeVar("_Kind", bound=type[Any])


class Registry(Generic[_Entry]):
    """Entries by name, in the order of registration.

    Attributes:
      by_name: read-only view of the entries.
    """

    def __init__(self, field: str) -> None:
        """Starts empty.

        Args:
          field: argument or field that holds a name, for error messages.
        """
        self._field = field
        self._entries: dict[str, _Entry] = {}
        self.by_name: Mapping[str, _Entry] = types.MappingProxyType(self._entries)

    def add(self, name: str, entry: _Entry) -> None:
        """Adds an entry; adding the same entry again has no effect.

        Raises:
          ValueError: another entry has the name.
        """
        known = self._entries.setdefault(name, entry)
        if known is not entry:
            raise ValueError(f"{self._field}: name must be new, got {name!r}, which {known!r} has")

    def get(self, name: str) -> _Entry:
        """Returns the entry of a name; a `ValueError` lists the names if there is none."""
        if name not in self._entries:
            raise ValueError(
                f"{self._field} must be one of {', '.join(self._entries)}, got {name!r}"
            )
        return self._entries[name]

    def forget(self, name: str) -> None:
        """Removes the entry of a name; a `ValueError` lists the names if there is none."""
        self.get(name)
        del self._entries[name]


class ClassRegistry(Registry[type[_Member]]):
    """Frozen dataclasses by their class variable `name`."""

    def __init__(
        self,
        described: str,
        field: str = "strategy",
        protocol: type[Any] = object,
        usual: Sequence[type[Any]] = (),
    ) -> None:
        """Starts empty.

        Args:
          described: description of the objects, for error messages.
          field: argument by which users choose one, for error messages.
          protocol: protocol of the objects.
          usual: base classes that implement parts of the protocol, for error messages.
        """
        super().__init__(field)
        self._described = described
        self._protocol = protocol
        self._usual = usual

    def register(self, kind: _Kind) -> _Kind:
        """Registers a class; a decorator.

        Raises:
          ValueError: not a frozen dataclass with a name and defaults for all arguments, another
            class has the name, or a member of the protocol is missing.
        """
        name = getattr(kind, "name", None)
        if not isinstance(name, str) or not name:
            raise ValueError(f"{self._field}: name must be a text that is not empty, got {name!r}")
        if not getattr(getattr(kind, "__dataclass_params__", None), "frozen", False):
            raise ValueError(f"{self._field} {name!r} must be a frozen dataclass, got {kind!r}")
        if self.by_name.get(name, kind) is not kind:
            self.add(name, kind)  # raises
        try:
            kind()
        except TypeError as error:
            raise ValueError(
                f"{self._field} {name!r} must have a default for every argument: {error}"
            ) from None
        missing = lacking(kind, self._protocol)
        if missing:
            raise ValueError(
                f"{self._field} {name!r} must have {', '.join(missing)}, as in"
                f" {_dotted(self._protocol)}{self._base_hint(missing)}"
            )
        self.add(name, kind)
        return kind

    def _base_hint(self, missing: list[str]) -> str:
        """Returns the base classes that implement missing members, for an error message."""
        found = [
            _dotted(base)
            for base in self._usual
            if set(missing) - set(lacking(base, self._protocol))
        ]
        return f"; inherit {' or '.join(found)} for defaults" if found else ""

    def find(self, member: Any) -> _Member | None:
        """Returns an object of a registered class, or makes one from its name; else None."""
        if isinstance(member, str):
            return self.by_name[member]() if member in self.by_name else None
        return member if type(member) in self.by_name.values() else None

    def resolve(self, member: _Member | str) -> _Member:
        """Returns an object of a registered class, or makes one from its name.

        Raises:
          ValueError: unknown name or class.
        """
        found = self.find(member)
        if found is not None:
            return found
        if isinstance(member, str):
            return self.get(member)()  # raises
        raise ValueError(
            f"{self._field} must be a name or an object of {self._described}, got {member!r}"
        )


def _dotted(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def lacking(kind: type[Any], protocol: type[Any]) -> list[str]:
    """Returns the protocol members that a dataclass lacks, in the order of declaration."""
    declared = [vars(base) for base in reversed(protocol.__mro__)]
    members = [name for base in declared for name in (*base.get("__annotations__", ()), *base)]
    return [
        name
        for name in dict.fromkeys(members)
        if not name.startswith("_")
        and not hasattr(kind, name)
        and name not in kind.__dataclass_fields__
    ]
