"""When something keeps a limit that it may just reach: one rule for all planners."""

import math
from typing import Any

# Relative. A limit is kept up to what rounding may do to sums and ratios.
TOLERANCE = 1e-12


def widened(limit: float) -> float:
    """What a number may be at most to be within a limit."""
    wide = limit * (1 + TOLERANCE)
    # The largest numbers cannot be widened, and what is infinite is within no number.
    return wide if math.isfinite(wide) else limit


def within(value: Any, limit: float) -> Any:
    """Whether a number, or each of an array, is at most the limit, up to rounding."""
    return value <= widened(limit)
