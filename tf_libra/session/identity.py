"""What tells training functions apart that have the same name, on every rank alike.

A script decorates in the same order on every rank, so that counting tells apart two that share name
and variables.
"""

from collections import Counter

# How many functions of a name this process has decorated.
_DECORATED: Counter[str] = Counter()


def of_another(name: str) -> str:
    """The identity of one more function of this name."""
    count = _DECORATED[name]
    _DECORATED[name] += 1
    return f"{name}#{count}" if count else name


def count_anew() -> None:
    """Counts from the start, as workers do that have just joined the job."""
    _DECORATED.clear()
