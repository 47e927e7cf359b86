"""When something keeps a limit that it may just reach: one rule for all planners."""

from typing import Any

# Relative. A limit is kept up to what rounding may do to sums and ratios.
TOLERANCE = 1e-12


def widened(limit: float) -> float:
    """What a number may be at most to be within a limit."""
    return limit * (1 + TOLERANCE)


def within(value: Any, limit: float) -> Any:
    """Whether a number, or each of an array, is at most the limit, up to rounding."""
    return value <= widened(limit)
