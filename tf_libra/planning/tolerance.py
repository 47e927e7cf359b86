"""Comparison with a limit up to rounding: one rule for all planners."""

import math
from typing import Any

# Relative tolerance for the rounding of sums and ratios.
TOLERANCE = 1e-12


def widened(limit: float) -> float:
    """Returns the limit plus its tolerance."""
    wide = limit * (1 + TOLERANCE)
    # The largest numbers cannot be widened; an infinite value exceeds every limit.
    return wide if math.isfinite(wide) else limit


def within(value: Any, limit: float) -> Any:
    """Returns True, or an array of it, if a value is at most the limit, up to rounding."""
    return value <= widened(limit)
