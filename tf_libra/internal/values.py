"""Frozen values whose fields are checked by their annotations.

A value is a frozen dataclass that derives from `Value`. Its constructor checks every field by the
field's type and stores the result; constraints between fields are a method, `_validate`:

    @dataclass(frozen=True)
    class Interval(Value):
      name: str
      start: NonNegative
      stop: NonNegative
      devices: tuple[Natural, ...] = ()

      def _validate(self) -> None:
        validation.real("stop", self.stop, minimum=self.start)

The second argument of `Annotated` replaces the check of the type. It takes the field's name and the
value, returns the value to store, and raises `ValueError` for a wrong one. Types without a check,
such as arrays and protocols, are stored unchecked.
"""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, cast

from tf_libra.internal import validation

Check = Callable[[str, Any], Any]
_Value = TypeVar("_Value", bound="Value")

Natural = Annotated[int, validation.integer]
Naturals = Annotated[tuple[int, ...], validation.integers]
Count = Annotated[int, functools.partial(validation.integer, minimum=1)]
Counts = Annotated[tuple[int, ...], functools.partial(validation.integers, minimum=1)]
Int32 = Annotated[int, functools.partial(validation.integer, maximum=validation.MAX_INT32)]
Int32Count = Annotated[
    int, functools.partial(validation.integer, minimum=1, maximum=validation.MAX_INT32)
]
Int32Counts = Annotated[
    tuple[int, ...],
    functools.partial(validation.integers, minimum=1, maximum=validation.MAX_INT32),
]
NonNegative = Annotated[float, functools.partial(validation.real, minimum=0)]
Positive = Annotated[float, functools.partial(validation.real, above=0)]
AtLeastOne = Annotated[float, functools.partial(validation.real, minimum=1)]
Share = Annotated[float, functools.partial(validation.real, minimum=0, maximum=1)]
Names = Annotated[tuple[str, ...], validation.names]

_CHECKS: dict[Any, Check] = {
    bool: validation.boolean,
    float: validation.real,
    int: functools.partial(validation.integer, minimum=-validation.MAX_INT64 - 1),
    str: validation.text,
}


class Value:
    """Base class of frozen dataclasses with checked fields.

    Attributes:
      SPARSE: fields that `_to_fields` omits if they have their default.
    """

    SPARSE: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name, check in _field_checks(cast(Any, type(self))):
            original = getattr(self, name)
            value = check(name, original)
            if value is not original:
                object.__setattr__(self, name, value)
        self._validate()

    def _validate(self) -> None:
        """Checks constraints between fields; raises `ValueError`."""

    def _to_fields(self) -> dict[str, Any]:
        """Returns the fields as JSON values, which `from_fields` reads back unchanged."""
        return {
            field.name: plain(getattr(self, field.name))
            for field in dataclasses.fields(cast(Any, self))
            if field.name not in self.SPARSE
            or not _is_default(getattr(self, field.name), field.default)
        }

    def to_document(self) -> Any:
        """Returns the value as JSON values in a field of another one."""
        return self._to_fields()

    @classmethod
    def from_fields(cls, name: str, fields: Any) -> Self:
        """Builds a value from what `_to_fields` returned.

        Args:
          name: name of the value, for errors.
          fields: JSON values by the fields' names; other values are a `ValueError`.
        """
        fields = dict(validation.keys(name, fields, *field_names(cls)))
        for field, decode in _field_decoders(cast(Any, cls)):
            if field in fields:
                fields[field] = decode(field, fields[field])
        return cls(**fields)

    @classmethod
    def parse(cls, name: str, value: Any) -> Self:
        """Reads a value in a field of another one; errors begin with the field's name."""
        validation.keys(name, value, *field_names(cls))
        try:
            return cls.from_fields(name, value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


def field_names(kind: type[Any]) -> tuple[list[str], list[str]]:
    """Returns the names of a dataclass's fields: those without a default, those with one."""
    required: list[str] = []
    optional: list[str] = []
    for field in dataclasses.fields(kind):
        (required if field.default is dataclasses.MISSING else optional).append(field.name)
    return required, optional


def parse_items(name: str, value: Any, kind: type[_Value]) -> tuple[_Value, ...]:
    """Reads a JSON list of values of one class; errors begin with the item's name."""
    return cast(tuple[_Value, ...], _items(kind.parse)(name, value))


def plain(value: Any) -> Any:
    """Returns a value as JSON values: dicts, lists, strings, numbers."""
    if isinstance(value, Value):
        return value.to_document()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def one_of(allowed: Sequence[Any]) -> Check:
    """Returns the check that a value is one of those allowed."""

    def check(name: str, value: Any) -> Any:
        if not any(isinstance(value, type(choice)) and value == choice for choice in allowed):
            shown = ", ".join(map(str, allowed))
            raise ValueError(f"{name} must be one of {shown}, got {validation.shortened(value)}")
        return value

    return check


def ascending_counts(noun: str) -> Check:
    """Returns the check of a set of counts that is not empty, which it sorts.

    Args:
      noun: noun phrase for one count, for errors.
    """

    def check(name: str, value: Any) -> tuple[int, ...]:
        counts = set(validation.integers(name, value, 1, validation.MAX_INT32))
        if not counts:
            raise ValueError(f"{name} must hold at least one {noun}, got ()")
        return tuple(sorted(counts))

    return check


def _field_hints(kind: type[Any]) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        try:
            hints |= inspect.get_annotations(base, eval_str=True)
        except NameError:  # a type that only type checkers import
            hints |= dict.fromkeys(inspect.get_annotations(base), Any)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@functools.cache
def _field_checks(kind: Any) -> tuple[tuple[str, Check], ...]:
    checks = [(n, _check_of(hint)) for n, hint in _field_hints(kind).items()]
    return tuple((name, check) for name, check in checks if check is not None)


@functools.cache
def _field_decoders(kind: Any) -> tuple[tuple[str, Check], ...]:
    decoders = [(n, _decoder_of(hint)) for n, hint in _field_hints(kind).items()]
    return tuple((name, decode) for name, decode in decoders if decode is not None)


def _check_of(hint: Any) -> Check | None:
    """Returns the check of an annotation; None if it has none."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return cast(Check, arguments[1])
    if origin is Literal:
        return one_of(arguments)
    if origin in (Union, types.UnionType):
        members = [member for member in arguments if member is not types.NoneType]
        return _optional(_check_of(members[0])) if len(members) == 1 else None
    if origin is tuple and arguments[1:] == (...,):
        return _items(_check_of(arguments[0]))
    if origin is tuple:
        return _row([_check_of(argument) for argument in arguments])
    if origin is not None or not isinstance(hint, type) or hint is Any:
        return None
    if hint in _CHECKS:
        return _CHECKS[hint]
    if getattr(hint, "_is_protocol", False):
        return None
    return functools.partial(_instance, hint)


def _decoder_of(hint: Any) -> Check | None:
    """Returns the reader of JSON values for an annotation with a value; None for other types."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        members = [member for member in arguments if member is not types.NoneType]
        return _optional(_decoder_of(members[0])) if len(members) == 1 else None
    if origin is tuple and arguments[1:] == (...,):
        decode = _decoder_of(arguments[0])
        return None if decode is None else _items(decode)
    return cast(Check, hint.parse) if hasattr(hint, "parse") else None


def _optional(check: Check | None) -> Check | None:
    if check is None:
        return None
    return lambda name, value: None if value is None else check(name, value)


def _items(check: Check | None) -> Check:
    if check is None:
        return validation.sequence

    def check_items(name: str, value: Any) -> tuple[Any, ...]:
        items = validation.sequence(name, value)
        try:
            return tuple([check(name, item) for item in items])
        except ValueError:  # the item's name is formatted only if it is needed
            return tuple([check(f"{name}[{i}]", item) for i, item in enumerate(items)])

    return check_items


def _row(checks: Sequence[Check | None]) -> Check:
    def check_row(name: str, value: Any) -> tuple[Any, ...]:
        items = validation.sequence(name, value)
        if len(items) != len(checks):
            raise ValueError(
                f"{name} must have {len(checks)} entries, got {validation.shortened(items)}"
            )
        return tuple(
            item if check is None else check(f"{name}[{i}]", item)
            for i, (check, item) in enumerate(zip(checks, items, strict=True))
        )

    return check_row


def _instance(kind: type[Any], name: str, value: Any) -> Any:
    validation.instance(name, value, kind)
    return value


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))
