"""Formats of times, bytes and shares for readers, the same in every output.

`tf_libra/reporting/tensorboard/static/format.js` is the same for the browser; a test compares them.
Numbers have four significant digits and at most three decimals, in the largest unit in which they
are at least 1. Halves are rounded up, as browsers do.
"""

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal

NONE = "-"
COLUMNS = 100
"""Columns of text that users read, at most."""
# Result of interleaved trials whose difference may be noise.
NO_DIFFERENCE = "no significant difference"
# Confidence limits that allow almost any ratio.
UNDETERMINED = "undetermined, too few steps"
# Upper limit over lower limit of a ratio, from which the limits state nothing.
_WIDEST = 100

_DIGITS = Context(prec=4, rounding=ROUND_HALF_UP)
# From here on the browser's toFixed writes an exponent.
_TOO_LONG = 1e21
_TIMES = (("us", 1e6), ("ms", 1e3), ("s", 1.0))
_BYTES = (("B", 1.0), ("kB", 1e-3), ("MB", 1e-6), ("GB", 1e-9))


def listed(names: Sequence[str | int], most: int = 5) -> str:
    """Returns the first names, quoted, or numbers, and how many others there are."""
    first = ", ".join(repr(name) for name in names[:most])
    return first if len(names) <= most else f"{first} and {len(names) - most} more"


def count(number: int, noun: str) -> str:
    """Returns a number with its noun, such as "1 group" and "2 groups"."""
    return f"{number} {noun}{'s' if number > 1 else ''}"


def time(seconds: float | None) -> str:
    """Formats seconds in us, ms or s; None as a dash."""
    return NONE if seconds is None else _scaled(seconds, _TIMES)


def difference(seconds: float | None) -> str:
    """Formats a change in seconds, with its sign."""
    if seconds is None:
        return "not possible"
    text = time(abs(seconds))
    if _number(abs(seconds) * 1e6) == 0:
        return "no change"
    return f"{'+' if seconds > 0 else '-'}{text}"


def size(num_bytes: float | None) -> str:
    """Formats bytes in B, kB, MB or GB, of thousands; None as a dash."""
    return NONE if num_bytes is None else _scaled(num_bytes, _BYTES)


def rate(bytes_per_second: float | None) -> str:
    """Formats bytes per second, as `size` formats bytes."""
    return NONE if bytes_per_second is None else f"{size(bytes_per_second)}/s"


def percent(share: float | None) -> str:
    """Formats a share, such as 0.125, in per cent with one decimal."""
    return NONE if share is None else f"{_fixed(share * 100, 1)} %"


def change(share: float | None) -> str:
    """Formats a relative change, such as -0.125, in per cent with its sign."""
    if share is None:
        return NONE
    text = _fixed(abs(share) * 100, 1)
    sign = "" if not float(text) else "+" if share > 0 else "-"
    return f"{sign}{text} %"


def limits(low: float, high: float) -> str:
    """Formats confidence limits of a ratio as changes; `UNDETERMINED` if they are too wide."""
    return UNDETERMINED if high > _WIDEST * low else f"{change(low - 1)} to {change(high - 1)}"


def _scaled(value: float, units: tuple[tuple[str, float], ...]) -> str:
    sign, value = ("-" if value < 0 else ""), abs(value)
    for unit, factor in units:
        number = _number(value * factor)
        if number < 1000 or unit == units[-1][0]:
            text = f"{number.normalize():f}" if number < _TOO_LONG else repr(float(number))
            return f"{sign if number else ''}{text} {unit}"
    raise AssertionError("there is a last unit")


def _number(value: float) -> Decimal:
    # In two steps, as the browser does it.
    rounded = float(_DIGITS.create_decimal_from_float(value))
    return Decimal(_fixed(rounded, 3))


def _fixed(value: float, decimals: int) -> str:
    if abs(value) >= _TOO_LONG:
        return repr(value)
    return str(Decimal(value).quantize(Decimal(10) ** -decimals, ROUND_HALF_UP))
