"""Checks on values that come from outside.

Each raises `ValueError` that names the field, the value and what is allowed.
"""

import dataclasses
import hashlib
import json
import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sized
from typing import Any, TypeVar

import numpy as np

MAX_JSON_CHARACTERS = 16 * 2**20
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1
_T = TypeVar("_T")


def integer(field: str, value: Any, minimum: int = 0, maximum: int = MAX_INT64) -> int:
    """Returns `value` as an int in [minimum, maximum]; whole floats count, booleans do not."""
    if type(value) is int and minimum <= value <= maximum:  # most are; plans hold thousands
        return value
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        # NumPy's float32 is no float.
        is_whole = hasattr(value, "is_integer") and value.is_integer()
        number = operator.index(int(value) if is_whole else value)
    except TypeError:
        raise ValueError(f"{field} must be an integer, got {_short(value)}") from None
    if not minimum <= number <= maximum:
        raise ValueError(f"{field} must be from {minimum} to {maximum}, got {_short(number)}")
    return number


def count(field: str, value: Any) -> int | None:
    """Returns `value` as an int of at least 1, or None where that is given."""
    return None if value is None else integer(field, value, 1, MAX_INT32)


def real(
    field: str, value: Any, *, minimum: float | None = None, above: float | None = None
) -> float:
    """Returns `value` as a finite float, at least `minimum` and greater than `above`."""
    try:
        if type(value) is not float and isinstance(value, (bool, np.bool_, str, bytes)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{field} must be a finite number, got {_short(value)}") from None
    if not math.isfinite(number):
        raise ValueError(f"{field} must be a finite number, got {number}")
    if minimum is not None and number < minimum:
        raise ValueError(f"{field} must be at least {minimum:g}, got {number!r}")
    if above is not None and number <= above:
        raise ValueError(f"{field} must be greater than {above:g}, got {number!r}")
    return number


def text(field: str, value: Any) -> str:
    """Returns `value`, a string that can be encoded as UTF-8."""
    if not isinstance(value, str):
        raise ValueError(f"{field} must be a string, got {_short(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{field} must be valid Unicode, got {_short(value)}") from None
    return value


def boolean(field: str, value: Any) -> bool:
    """Returns `value`, a bool."""
    if not isinstance(value, bool):
        raise ValueError(f"{field} must be true or false, got {_short(value)}")
    return value


def sequence(field: str, value: Any) -> tuple[Any, ...]:
    """Returns the items of `value`: an iterable, but no string and no mapping."""
    if type(value) is tuple:
        return value
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ValueError(f"{field} must be a list, got {_short(value)}")
    try:
        return tuple(value)
    except TypeError:  # an array of no dimensions
        raise ValueError(f"{field} must be a list, got {_short(value)}") from None


def integers(field: str, value: Any, minimum: int = 0, maximum: int = MAX_INT64) -> tuple[int, ...]:
    """Returns the items of `value` as ints in [minimum, maximum]."""
    return tuple([integer(field, item, minimum, maximum) for item in sequence(field, value)])


def texts(field: str, value: Any) -> tuple[str, ...]:
    """Returns the items of `value`, strings that can be encoded as UTF-8."""
    return tuple(text(field, item) for item in sequence(field, value))


def names(field: str, value: Any) -> tuple[str, ...]:
    """Returns the items of `value`, strings that all differ."""
    found = texts(field, value)
    if len(set(found)) < len(found):
        raise ValueError(f"{field} must be unique")
    return found


def same_length(field: str, column: Sized, per: str, count: int) -> None:
    """Checks that a column has one entry per row, of which there are `count`."""
    if len(column) != count:
        raise ValueError(f"{field} must have one entry per {per}: {count}, got {len(column)}")


def digest(kind: str, version: int, executed: Mapping[str, Any]) -> str:
    """SHA-256, in hexadecimal, over values in an order of their own: equal values, equal digest."""
    value = {"format": kind, "version": version} | dict(executed)
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def same_fingerprint(given: Any, found: str) -> None:
    """Checks the fingerprint that a plan's document gives against that of its content."""
    if text("fingerprint", given) != found:
        raise ValueError(
            f"fingerprint must be that of the plan's content, {found}, got {_short(given)}"
        )


def keys(
    field: str, value: Any, required: Collection[str], optional: Collection[str] = ()
) -> dict[str, Any]:
    """Returns `value`, a dict with all of `required` and nothing beyond `optional`."""
    if not isinstance(value, dict):
        raise ValueError(f"{field} must be an object, got {_short(value)}")
    missing = sorted(set(required) - value.keys())
    if missing:
        raise ValueError(f"{field} lacks the keys {missing}")
    unknown = sorted(value.keys() - set(required) - set(optional))
    if unknown:
        raise ValueError(
            f"{field} has unknown keys {_short(unknown)}; "
            f"known are {sorted({*required, *optional})}"
        )
    return value


def instance(field: str, value: Any, kind: type) -> None:
    """Raises where `value` is of another class."""
    if not isinstance(value, kind):
        raise ValueError(f"{field} must be a {kind.__name__}, got {type(value).__name__}")


def field_names(kind: type) -> tuple[list[str], list[str]]:
    """Names of a dataclass's fields, those without a default apart from those with one."""
    required: list[str] = []
    optional: list[str] = []
    for field in dataclasses.fields(kind):
        (required if field.default is dataclasses.MISSING else optional).append(field.name)
    return required, optional


def built(field: str, value: Any, kind: type[_T]) -> _T:
    """Returns the dataclass whose fields `value`, a dict, holds."""
    keys(field, value, *field_names(kind))
    try:
        return kind(**value)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def items(field: str, values: Any, kind: type[_T]) -> tuple[_T, ...]:
    """Returns a list's items, each an object of this dataclass or a dict of its fields."""
    return tuple(
        value if isinstance(value, kind) else built(f"{field}[{index}]", value, kind)
        for index, value in enumerate(sequence(field, values))
    )


def json_document(kind: str, version: int, document: Any) -> dict[str, Any]:
    """Parses a JSON object marked with `format` and `version`, and returns its other entries.

    Args:
      kind: what the entry `format` must be, also the field that errors name.
      version: what the entry `version` must be.
      document: the JSON text.

    Raises:
      ValueError: not JSON, too long, nested too deep, repeated keys, NaN or infinite numbers, or
        of another format or version.
    """
    document = text(kind, document)
    if len(document) > MAX_JSON_CHARACTERS:
        raise ValueError(
            f"{kind} must have at most {MAX_JSON_CHARACTERS} characters, got {len(document)}"
        )
    try:
        value = json.loads(document, parse_constant=_Constant, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError(f"{kind} is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"{kind} is not valid JSON: {error}") from None
    _check_numbers(kind, value)
    if not isinstance(value, dict):
        raise ValueError(f"{kind} must be a JSON object, got {_short(value)}")
    found = (value.pop("format", None), value.pop("version", None))
    if found[0] != kind:
        raise ValueError(f"format must be {kind!r}, got {_short(found[0])}")
    if found[1] != version or isinstance(found[1], bool):
        raise ValueError(f"version of {kind} must be {version}, got {_short(found[1])}")
    return value


@dataclasses.dataclass(frozen=True)
class _Constant:
    """NaN, Infinity or -Infinity, which are no JSON and which Python writes nevertheless."""

    name: str


def _check_numbers(kind: str, document: Any) -> None:
    """Raises where a number of a parsed document is none, and says which."""
    waiting = [("", document)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, _Constant):
            raise ValueError(f"{place or kind} must be a finite number, got {value.name}")
        if isinstance(value, dict):
            inside = [(f"{place}.{key}" if place else key, one) for key, one in value.items()]
        elif isinstance(value, list):
            inside = [(f"{place}[{index}]", one) for index, one in enumerate(value)]
        else:
            continue
        waiting += reversed(inside)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object repeats a key")
    return value


def _short(value: Any) -> str:
    try:
        shown = repr(value)
    except ValueError:  # more digits than Python writes
        return "a number of too many digits"
    shown = " ".join(shown.splitlines())  # arrays have several
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
