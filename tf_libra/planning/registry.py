"""Who is known by which name: strategies register themselves, nobody keeps a list of them."""

import types
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

_Strategy = TypeVar("_Strategy")
_Kind = TypeVar("_Kind", bound=type[Any])


class Registry(Generic[_Strategy]):
    """Frozen dataclasses by their `name`, in the order in which they were registered.

    Attributes:
      by_name: what is registered, read-only.
    """

    def __init__(self, described: str) -> None:
        """Begins empty.

        Args:
          described: what objects of it are, for messages.
        """
        self._described = described
        self._kinds: dict[str, type[_Strategy]] = {}
        self.by_name: Mapping[str, type[_Strategy]] = types.MappingProxyType(self._kinds)

    def register(self, kind: _Kind) -> _Kind:
        """A decorator: makes a strategy known by its name, here and in every table.

        Raises:
          ValueError: it is no frozen dataclass with a name and defaults for all arguments, or
            another strategy has the name.
        """
        name = getattr(kind, "name", None)
        if not isinstance(name, str) or not name:
            raise ValueError(f"strategy: name must be a text that is not empty, got {name!r}")
        if not getattr(getattr(kind, "__dataclass_params__", None), "frozen", False):
            raise ValueError(f"strategy {name!r} must be a frozen dataclass, got {kind!r}")
        known = self._kinds.get(name, kind)
        if known is not kind:
            raise ValueError(f"strategy: name must be new, got {name!r}, which {known!r} has")
        try:
            kind()
        except TypeError as error:
            raise ValueError(
                f"strategy {name!r} must have a default for every argument: {error}"
            ) from None
        self._kinds[name] = kind
        return kind

    def forget(self, name: str) -> None:
        """Makes a strategy unknown again; `ValueError` where none has the name."""
        if self._kinds.pop(name, None) is None:
            raise ValueError(f"strategy must be one of {', '.join(self._kinds)}, got {name!r}")

    def resolve(self, strategy: _Strategy | str) -> _Strategy:
        """Returns the strategy itself, or the one of that name with its default arguments.

        Raises:
          ValueError: no strategy has this name.
        """
        if isinstance(strategy, str):
            if strategy not in self._kinds:
                raise ValueError(
                    f"strategy must be one of {', '.join(self._kinds)}, got {strategy!r}"
                )
            return self._kinds[strategy]()
        if type(strategy) not in self._kinds.values():
            raise ValueError(
                f"strategy must be a name or an object of {self._described}, got {strategy!r}"
            )
        return strategy
