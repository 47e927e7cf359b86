"""Public names that modules import at their first use (PEP 562)."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_getattr(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the function `__getattr__` of a module.

    Args:
        module: name of the module.
        homes: module of the package that defines each public name.
    """

    def find(name: str) -> Any:
        missing = f"module {module!r} has no attribute {name!r}"
        if name not in homes:
            raise AttributeError(missing)
        try:
            return getattr(importlib.import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            system = ".".join(homes[name].split(".")[:2])
            if error.name != system:
                raise
            raise AttributeError(f"{missing}: {system} is not installed") from None

    return find
