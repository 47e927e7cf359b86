"""Checks of values from outside; each `ValueError` names the field, the value and the range."""

import dataclasses
import json
import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sized
from typing import Any

import numpy as np

MAX_JSON_CHARACTERS = 16 * 2**20
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1


def integer(field: str, value: Any, minimum: int = 0, maximum: int = MAX_INT64) -> int:
    """Returns an int in [minimum, maximum]; whole floats are accepted, booleans are not."""
    if type(value) is int and minimum <= value <= maximum:  # the common case; plans hold thousands
        return value
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        # NumPy's float32 does not derive from float.
        is_whole = hasattr(value, "is_integer") and value.is_integer()
        number = operator.index(int(value) if is_whole else value)
    except TypeError:
        raise ValueError(f"{field} must be an integer, got {shortened(value)}") from None
    if not minimum <= number <= maximum:
        raise ValueError(f"{field} must be from {minimum} to {maximum}, got {shortened(number)}")
    return number


def real(
    field: str,
    value: Any,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
) -> float:
    """Returns a finite float, at least `minimum`, greater than `above` and at most `maximum`."""
    try:
        if type(value) is not float and isinstance(value, (bool, np.bool_, str, bytes)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{field} must be a finite number, got {shortened(value)}") from None
    if not math.isfinite(number):
        raise ValueError(f"{field} must be a finite number, got {number}")
    if minimum is not None and number < minimum:
        raise ValueError(f"{field} must be at least {minimum:g}, got {number!r}")
    if above is not None and number <= above:
        raise ValueError(f"{field} must be greater than {above:g}, got {number!r}")
    if maximum is not None and number > maximum:
        raise ValueError(f"{field} must be at most {maximum:g}, got {number!r}")
    return number


def text(field: str, value: Any) -> str:
    """Returns a string that can be encoded as UTF-8."""
    if not isinstance(value, str):
        raise ValueError(f"{field} must be a string, got {shortened(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{field} must be valid Unicode, got {shortened(value)}") from None
    return value


def boolean(field: str, value: Any) -> bool:
    """Returns a bool."""
    if not isinstance(value, bool):
        raise ValueError(f"{field} must be true or false, got {shortened(value)}")
    return value


def sequence(field: str, value: Any) -> tuple[Any, ...]:
    """Returns the items of an iterable other than a string or a mapping."""
    if type(value) is tuple:
        return value
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ValueError(f"{field} must be a list, got {shortened(value)}")
    try:
        return tuple(value)
    except TypeError:  # a zero-dimensional array
        raise ValueError(f"{field} must be a list, got {shortened(value)}") from None


def integers(field: str, value: Any, minimum: int = 0, maximum: int = MAX_INT64) -> tuple[int, ...]:
    """Returns a sequence of ints in [minimum, maximum] as a tuple."""
    return tuple([integer(field, item, minimum, maximum) for item in sequence(field, value)])


def texts(field: str, value: Any) -> tuple[str, ...]:
    """Returns a sequence of strings that can be encoded as UTF-8 as a tuple."""
    return tuple(text(field, item) for item in sequence(field, value))


def names(field: str, value: Any) -> tuple[str, ...]:
    """Returns a sequence of distinct strings as a tuple."""
    found = texts(field, value)
    if len(set(found)) < len(found):
        raise ValueError(f"{field} must be unique")
    return found


def same_length(field: str, column: Sized, per: str, count: int) -> None:
    """Checks that a column has one entry for each of `count` rows."""
    if len(column) != count:
        raise ValueError(f"{field} must have one entry per {per}: {count}, got {len(column)}")


def mapping(field: str, value: Any) -> dict[str, Any]:
    """Returns a dict, as JSON objects are read."""
    if not isinstance(value, dict):
        raise ValueError(f"{field} must be an object, got {shortened(value)}")
    return value


def keys(
    field: str, value: Any, required: Collection[str], optional: Collection[str] = ()
) -> dict[str, Any]:
    """Returns a dict that has all required keys and no others than the optional ones."""
    mapping(field, value)
    missing = sorted(set(required) - value.keys())
    if missing:
        raise ValueError(f"{field} lacks the keys {missing}")
    unknown = sorted(value.keys() - set(required) - set(optional))
    if unknown:
        raise ValueError(
            f"{field} has unknown keys {shortened(unknown)}; "
            f"known are {sorted({*required, *optional})}"
        )
    return dict(value)


def instance(field: str, value: Any, kind: type) -> None:
    """Checks the class of a value."""
    if not isinstance(value, kind):
        raise ValueError(f"{field} must be a {kind.__name__}, got {type(value).__name__}")


def json_document(kind: str, version: int, document: Any) -> dict[str, Any]:
    """Returns the entries of a JSON object with this format and version; see `json_object`."""
    return without_header(kind, version, json_object(kind, document))


def json_object(kind: str, document: Any) -> dict[str, Any]:
    """Parses a JSON object.

    Args:
      kind: name of the document, for errors.
      document: the JSON text.

    Raises:
      ValueError: not a JSON object, too long, nested too deep, a repeated key, or a number that is
        NaN or infinite.
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
        raise ValueError(f"{kind} must be a JSON object, got {shortened(value)}")
    return value


def without_header(kind: str, version: int, document: dict[str, Any]) -> dict[str, Any]:
    """Returns a document without its header; another format or version is a `ValueError`."""
    value = dict(document)
    found = (value.pop("format", None), value.pop("version", None))
    if found[0] != kind:
        raise ValueError(f"format must be {kind!r}, got {shortened(found[0])}")
    if found[1] != version or isinstance(found[1], bool):
        raise ValueError(f"version of {kind} must be {version}, got {shortened(found[1])}")
    return value


@dataclasses.dataclass(frozen=True)
class _Constant:
    """NaN, Infinity or -Infinity: Python reads and writes them, although JSON has none."""

    name: str


def _check_numbers(kind: str, document: Any) -> None:
    """Raises `ValueError` that names a number that is NaN or infinite."""
    waiting = [("", document)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, _Constant):
            raise ValueError(f"{path or kind} must be a finite number, got {value.name}")
        if isinstance(value, dict):
            inside = [(f"{path}.{key}" if path else key, item) for key, item in value.items()]
        elif isinstance(value, list):
            inside = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
        else:
            continue
        waiting += reversed(inside)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object repeats a key")
    return value


def shortened(value: Any) -> str:
    """Returns the `repr` of a value on one line, of at most 80 characters."""
    try:
        shown = repr(value)
    except ValueError:  # more digits than Python converts to text
        return "a number of too many digits"
    shown = " ".join(shown.splitlines())  # arrays have several lines
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
