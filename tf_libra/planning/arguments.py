"""The arguments of planners, of whatever kind of plan: fields of strategies, and what they say."""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_IN_TRAINING = "in_training"
# A field's `metadata`, where planning from files has no use for it: it is no flag of a command.
IN_TRAINING: Mapping[str, bool] = types.MappingProxyType({_IN_TRAINING: True})


@dataclass(frozen=True)
class Argument:
    """One field of a strategy.

    Attributes:
      name: by which it is given.
      kind: what it holds, or each of several: bool, int, float or str; None: what is none of these.
      several: whether it holds any number of them, as a tuple.
      default: where it is not given; None also where only the strategy knows it.
      doc: what the class's docstring says of it; empty: nothing.
      in_training: whether it is of use in training alone.
    """

    name: str
    kind: type | None
    several: bool
    default: Any
    doc: str
    in_training: bool = False


def arguments_of(strategy: type[Any]) -> tuple[Argument, ...]:
    """Returns the arguments of a strategy, in the order of its fields."""
    try:
        hints = typing.get_type_hints(strategy)
    except NameError:  # one that only type checkers import
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
    """What a field of this type holds, and whether it holds several; None is left out."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = [one for one in typing.get_args(hint) if one is not types.NoneType]
        return _kind(members[0]) if len(members) == 1 else (None, False)
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[1:] == (...,):
        return _kind(typing.get_args(hint)[0])[0], True
    return (hint if hint in (bool, int, float, str) else None), False


def _docs(strategy: type[Any]) -> dict[str, str]:
    """The section `Attributes` of the docstrings of a class and of those that it is made of."""
    docs: dict[str, str] = {}
    for one in reversed(strategy.__mro__):
        _, _, attributes = inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")
        for entry in re.split(r"\n(?=  \w)", attributes.partition("\n\n")[0]):
            name, _, doc = entry.strip().partition(":")
            docs[name] = " ".join(doc.split())
    return docs
