"""Arguments of planners: the fields of strategies, with their declared descriptions."""

import dataclasses
import types
import typing
from dataclasses import dataclass
from typing import Any

_DOC, _IN_TRAINING = "doc", "in_training"


@dataclass(frozen=True)
class Argument:
    """One field of a strategy.

    Attributes:
      name: name of the field.
      kind: type of the value or of its elements: bool, int, float or str; None: another type.
      several: True for a tuple of any length.
      default: default value; None also if only the strategy knows it.
      doc: declared description; empty for a field without one.
      in_training: True if only training uses the argument.
    """

    name: str
    kind: type | None
    several: bool
    default: Any
    doc: str
    in_training: bool = False


def argument(
    default: Any, doc: str, *, in_training: bool = False, is_rank_local: bool = False
) -> Any:
    """Declares a field of a strategy.

    Args:
      default: default value.
      doc: description, in help texts and in `docs/options.md`.
      in_training: True for a field without effect on planning from files: it becomes no flag.
      is_rank_local: True if ranks may pass different values, which the `repr` then leaves out.
    """
    metadata = {_DOC: doc, _IN_TRAINING: in_training}
    return dataclasses.field(default=default, metadata=metadata, repr=not is_rank_local)


def arguments_of(strategy: type[Any]) -> tuple[Argument, ...]:
    """Returns the arguments of a strategy, in the order of its fields."""
    try:
        hints = typing.get_type_hints(strategy)
    except NameError:  # a type that only type checkers import
        hints = {}
    return tuple(
        Argument(
            field.name,
            *_kind(hints.get(field.name)),
            None if field.default is dataclasses.MISSING else field.default,
            field.metadata.get(_DOC, ""),
            field.metadata.get(_IN_TRAINING, False),
        )
        for field in dataclasses.fields(strategy)
        if field.init
    )


def _kind(hint: Any) -> tuple[type | None, bool]:
    """Returns the element type of a field and True for a tuple; ignores None."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
        return _kind(members[0]) if len(members) == 1 else (None, False)
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[1:] == (...,):
        return _kind(typing.get_args(hint)[0])[0], True
    return (hint if hint in (bool, int, float, str) else None), False
