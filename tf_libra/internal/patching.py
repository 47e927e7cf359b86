"""Replacement of attributes of other packages while a context lasts.

`patches.py` lists the attributes that TF-Libra replaces. A replacement that other code has
installed in the meantime stays. It may call ours, which then behaves like the original.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_ABSENT = object()


@dataclass(frozen=True, kw_only=True)
class Patch:
    """An attribute to replace.

    Attributes:
        module: module that contains the attribute.
        path: name in the module, through classes and objects.
        why: purpose of the replacement.
        since: oldest release known to have the attribute with its current signature.
        reentry: behavior of a call during another call.
        adds: whether the attribute is added instead of replaced.
    """

    module: str
    path: str
    why: str
    since: str
    reentry: str = "as usual"
    adds: bool = False

    @property
    def name(self) -> str:
        """Name of the attribute in its owner."""
        return self.path.rpartition(".")[2]

    def find_owner(self) -> Any:
        """Returns the module, class or object that has the attribute.

        Raises:
            ImportError, AttributeError: the module or a part of the path is missing.
        """
        owner: Any = importlib.import_module(self.module)
        for part in self.path.split(".")[:-1]:
            owner = getattr(owner, part)
        return owner

    def exists(self) -> bool:
        """Returns whether the attribute exists."""
        try:
            return hasattr(self.find_owner(), self.name)
        except (ImportError, AttributeError):
            return False


@contextlib.contextmanager
def observed(patch: Patch, on_read: Callable[[Any], Any]) -> Iterator[None]:
    """Passes an attribute of a class's instances through a function while the context lasts.

    Args:
        patch: of the table; an attribute that instances have, and their class has not.
        on_read: called with the attribute at each read; returns what the reader gets.
    """
    owner, name = patch.find_owner(), patch.name

    def read(instance: Any) -> Any:
        try:
            value = vars(instance)[name]
        except KeyError:
            raise AttributeError(name) from None
        return on_read(value)

    def write(instance: Any, value: Any) -> None:
        vars(instance)[name] = value

    ours = property(read, write)
    setattr(owner, name, ours)
    try:
        yield
    finally:
        if vars(owner).get(name) is ours:
            delattr(owner, name)


@contextlib.contextmanager
def replaced(patch: Patch, make: Callable[[Any], Callable[..., Any]]) -> Iterator[None]:
    """Replaces an attribute by another callable while the context lasts.

    Args:
        patch: of the table.
        make: returns the replacement of its argument, the original attribute; None if the
            attribute is added.

    Raises:
        AttributeError: the attribute does not exist.
    """
    from tf_libra.internal import tf_internal

    owner, name = patch.find_owner(), patch.name
    original = None if patch.adds else getattr(owner, name)
    # A method of an object belongs to its class: restoring it means deleting the replacement.
    own_value = vars(owner).get(name, _ABSENT)
    replacement = make(original)
    is_active = True

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_active or original is None:
            return replacement(*args, **kwargs)
        return original(*args, **kwargs)

    if original is not None:
        functools.update_wrapper(call, original, updated=())
    # AutoGraph leaves this wrapper unconverted, and converts the callee as usual.
    tf_internal.autograph_artifact(call)
    setattr(owner, name, call)
    try:
        yield
    finally:
        is_active = False
        if vars(owner).get(name) is call:
            if own_value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own_value)
