"""Arguments of planners: the fields of strategies of any kind, with their descriptions."""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_IN_TRAINING = "in_training"
# `metadata` of a field without effect on planning from files: it becomes no command-line flag.
IN_TRAINING: Mapping[str, bool] = types.MappingProxyType({_IN_TRAINING: True})


@dataclass(frozen=True)
class Argument:
    """One field of a strategy.

    Attributes:
      name: name of the field.
      kind: type of the value or of its elements: bool, int, float or str; None: another type.
      several: True for a tuple of any length.
      default: default value; None also if only the strategy knows it.
      doc: description in the class's docstring; empty without one.
      in_training: True if only training uses the argument.
    """

    name: str
    kind: type | None
    several: bool
    default: Any
    doc: str
    in_training: bool = False


def arguments_of(strategy: type[Any]) -> tuple[Argument, ...]:
    """Return the arguments of a strategy, in the order of its fields."""
    try:
        hints = typing.get_type_hints(strategy)
    except NameError:  # a type that only type checkers import
        hints = {}
    docs = _docs(strategy)
    return tuple(
        Argument(
            field.name,
            *_kind(hints.get(field.name)),
            None if field.default is dataclasses.MISSING else field.default,
            docs.get(field.name, ""),
            field.metadata.get(_IN_TRAINING, False),
        )
        for field in dataclasses.fields(strategy)
        if field.init
    )


def _kind(hint: Any) -> tuple[type | None, bool]:
    """Return the element type of a field and True for a tuple; ignores None."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = [one for one in typing.get_args(hint) if one is not types.NoneType]
        return _kind(members[0]) if len(members) == 1 else (None, False)
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[1:] == (...,):
        return _kind(typing.get_args(hint)[0])[0], True
    return (hint if hint in (bool, int, float, str) else None), False


def _docs(strategy: type[Any]) -> dict[str, str]:
    """Return the `Attributes` of the docstrings of a class and its bases, by name."""
    docs: dict[str, str] = {}
    for one in reversed(strategy.__mro__):
        _, _, attributes = inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")
        for entry in re.split(r"\n(?=  \w)", attributes.partition("\n\n")[0]):
            name, _, doc = entry.strip().partition(":")
            docs[name] = " ".join(doc.split())
    return docs
