"""Registries by name: members register themselves, so no module lists them.

Optional systems are folders that register members with the core. `load_systems` discovers them.
"""

import functools
import importlib
import importlib.util
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

_Member = TypeVar("_Member")
_Kind = TypeVar("_Kind", bound=type[Any])
# A system may be absent. The core imports no other module of it.
SYSTEMS = ("model_parallel", "background_jobs")


class Registry(Mapping[str, _Member]):
    """Members by name, in the order of their registration."""

    def __init__(self, field: str, load: Callable[[], None] = lambda: None) -> None:
        """Creates an empty registry.

        Args:
          field: argument by which users name a member, for messages.
          load: called before every lookup; imports the modules that register optional members.
        """
        self._field = field
        self._load = load
        self._members: dict[str, _Member] = {}

    def __getitem__(self, name: str) -> _Member:
        self._load()
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._members)

    def __len__(self) -> int:
        self._load()
        return len(self._members)

    def add(self, name: str, member: _Member) -> None:
        """Registers a member; an invalid or used name is a `ValueError`."""
        self._check_name(name, member)
        self._members[name] = member

    def _check_name(self, name: Any, member: _Member) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{self._field}: name must be a text that is not empty, got {name!r}")
        known = self._members.get(name, member)
        if known is not member:
            raise ValueError(f"{self._field}: name must be new, got {name!r}, which {known!r} has")

    def forget(self, name: str) -> None:
        """Removes a member; an unknown name is a `ValueError`."""
        if self._members.pop(name, None) is None:
            raise self._unknown(name)

    def _unknown(self, name: str) -> ValueError:
        return ValueError(f"{self._field} must be one of {', '.join(self)}, got {name!r}")


class ClassRegistry(Registry[type[_Member]]):
    """Frozen dataclasses by their `name`, such as planners and backends.

    Attributes:
      by_name: the classes by name, read-only.
    """

    def __init__(
        self,
        described: str,
        field: str = "strategy",
        protocol: type[Any] = object,
        bases: Sequence[type[Any]] = (),
    ) -> None:
        """Creates an empty registry.

        Args:
          described: description of its objects, for messages.
          field: argument by which users name a class, for messages.
          protocol: members that every class must have.
          bases: classes that provide defaults for some of these members, for messages.
        """
        super().__init__(field)
        self.by_name: Mapping[str, type[_Member]] = types.MappingProxyType(self._members)
        self._described = described
        self._protocol = protocol
        self._bases = bases

    def register(self, kind: _Kind) -> _Kind:
        """Registers a class under its `name`; a decorator.

        Raises:
          ValueError: it is no frozen dataclass with a name and defaults for all arguments, another
            class has the name, or it lacks a member of the protocol.
        """
        name: Any = getattr(kind, "name", None)
        if not getattr(getattr(kind, "__dataclass_params__", None), "frozen", False):
            raise ValueError(f"{self._field} {name!r} must be a frozen dataclass, got {kind!r}")
        self._check_name(name, kind)
        try:
            kind()
        except TypeError as error:
            raise ValueError(
                f"{self._field} {name!r} must have a default for every argument: {error}"
            ) from None
        missing = missing_members(kind, self._protocol)
        if missing:
            raise ValueError(
                f"{self._field} {name!r} must have {', '.join(missing)}:"
                f" {_dotted(self._protocol)} documents them{self._advice(missing)}"
            )
        self.add(name, kind)
        return kind

    def _advice(self, missing: list[str]) -> str:
        found = [
            _dotted(base)
            for base in self._bases
            if set(missing) - set(missing_members(base, self._protocol))
        ]
        return f"; inherit {' or '.join(found)} for defaults" if found else ""

    def find(self, member: Any) -> _Member | None:
        """Returns the object itself, or the default object of a name; None if unknown."""
        if isinstance(member, str):
            return self._members[member]() if member in self._members else None
        return member if type(member) in self._members.values() else None

    def resolve(self, member: _Member | str) -> _Member:
        """Returns what `find` returns; an unknown member is a `ValueError`."""
        found = self.find(member)
        if found is not None:
            return found
        if isinstance(member, str):
            raise self._unknown(member)
        raise ValueError(
            f"{self._field} must be a name or an object of {self._described}, got {member!r}"
        )


def _dotted(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def missing_members(kind: type[Any], protocol: type[Any]) -> list[str]:
    """Returns the members of a protocol that a dataclass lacks, in their order of declaration."""
    declared = [vars(base) for base in reversed(protocol.__mro__)]
    members = [name for names in declared for name in (*names.get("__annotations__", ()), *names)]
    return [
        name
        for name in dict.fromkeys(members)
        if not name.startswith("_")
        and not hasattr(kind, name)
        and name not in kind.__dataclass_fields__
    ]


@functools.cache
def load_systems() -> None:
    """Imports the module `registration` of every system that is present, once."""
    for system in SYSTEMS:
        spec = importlib.util.find_spec(f"tf_libra.{system}")
        if spec is not None and spec.has_location:  # a folder without modules has none
            importlib.import_module(f"tf_libra.{system}.registration")
